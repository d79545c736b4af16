"""The bytes of a request that a parity case describes, however long: generators keep fixtures short.

Thread: any
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import UNSET, Struct, UnsetType

MOST_COPIES = 1 << 26


class Made(Struct, forbid_unknown_fields=True, frozen=True):
    """A part of raw bytes that is not written out: `hex` digits, a text repeated, or a JSON value with its own
    generators. Exactly one is given.
    """

    hex: str | UnsetType = UNSET
    repeat: tuple[str, int] | UnsetType = UNSET
    json: Any = UNSET

    def __post_init__(self) -> None:
        if [self.hex, self.repeat, self.json].count(UNSET) != 2:
            raise ValueError("a part is one of `hex`, `repeat`, `json`")
        if self.repeat is not UNSET:
            check_repeats({"repeat": list(self.repeat)})
        check_repeats(self.json)
        if isinstance(self.hex, str):
            bytes.fromhex(self.hex)

    def data(self) -> bytes:
        """The bytes that are meant."""
        if isinstance(self.hex, str):
            return bytes.fromhex(self.hex)
        if isinstance(self.repeat, tuple):
            return self.repeat[0].encode() * self.repeat[1]
        return json_bytes(self.json)


Raw = tuple[str | Made, ...]


def raw_bytes(parts: Raw) -> bytes:
    """The parts joined."""
    return b"".join(part.encode() if isinstance(part, str) else part.data() for part in parts)


def json_bytes(value: Any) -> bytes:
    """A value as JSON in UTF-8, its generators played."""
    return json.dumps(_played(value), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def check_repeats(value: Any) -> None:
    """Raises: ValueError for an object {"repeat": ...} that is no generator."""
    if isinstance(value, dict):
        if set(value) == {"repeat"}:
            match value["repeat"]:
                case [_, int(count)] if not isinstance(count, bool) and 0 <= count <= MOST_COPIES:
                    pass
                case _:
                    raise ValueError("`repeat` is a value and a count")
        for inner in value.values():
            check_repeats(inner)
    elif isinstance(value, list):
        for inner in value:
            check_repeats(inner)


def _played(value: Any) -> Any:
    """A text repeated is a longer text; any other value repeated is a list."""
    match value:
        case {"repeat": [inner, int(count)]} if len(value) == 1:
            return inner * count if isinstance(inner, str) else [_played(inner)] * count
        case dict():
            return {name: _played(inner) for name, inner in value.items()}
        case list():
            return [_played(inner) for inner in value]
        case _:
            return value
