"""The names inside the objects of a request that nobody knows: they are told and logged as those beside them are.

What a schema, a tool's parameters or a template's kwargs hold is the client's own, and so are earlier calls.

Thread: any
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from lattice_cli.serve.wire.formats import JsonSchema, ResponseFormat
from lattice_cli.serve.wire.messages import ContentPart, Message
from lattice_cli.serve.wire.schema import StreamOptions
from lattice_cli.serve.wire.tools import Offered, OfferedFunction

Shape = type[msgspec.Struct]
FIELDS: Mapping[str, Shape] = {
    "messages": Message, "response_format": ResponseFormat, "stream_options": StreamOptions, "tools": Offered,
}  # fmt: skip
INNER: Mapping[tuple[Shape, str], Shape] = {
    (Message, "content"): ContentPart,
    (Offered, "function"): OfferedFunction,
    (ResponseFormat, "json_schema"): JsonSchema,
}
SENT_BACK = frozenset({"annotations", "refusal"})  # parts of our own answers, as SDKs have them


def names_inside(said: Mapping[str, Any]) -> list[str]:
    """Each with its place, such as `tools.function.x`, in order. The shapes were read already, or are not read here."""
    return [name for field, shape in FIELDS.items() for name in _strange(said.get(field), shape, field)]


def _strange(value: Any, shape: Shape, place: str) -> Iterator[str]:
    for one in value if isinstance(value, list) else (value,):
        if not isinstance(one, dict):
            continue
        for name, inside in one.items():
            if name not in shape.__struct_fields__ and name not in SENT_BACK:
                yield f"{place}.{name}"
            elif (inner := INNER.get((shape, name))) is not None:
                yield from _strange(inside, inner, f"{place}.{name}")
