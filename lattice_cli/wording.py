"""What a caller said against the shape it should have: msgspec checks, and its complaints are put in our own words.

`null` means absent everywhere. The server and the chat read the same fields in the same words.

Thread: any
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from lattice_cli.errors import InvalidField, InvalidMessages

Fields = TypeVar("Fields", bound=msgspec.Struct)

PLACED = re.compile(r"(?s)(.*?)(?: - at `\$\.?(.*)`)?\Z")
WORDS = {"int": "an integer", "float": "a number", "str": "a string", "bool": "true or false"}
WORDS |= {"array": "an array", "object": "an object"}
CODES = {
    "temperature": "invalid_temperature",
    "top_p": "invalid_top_p",
    "stop": "invalid_stop",
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_new_tokens"), "invalid_max_tokens"),
}


def read_fields(body: Mapping[str, Any], shape: type[Fields]) -> Fields:
    """Check an object against a struct. Raises: InvalidField or InvalidMessages with the place in `param`."""
    try:
        return msgspec.convert(body, shape)
    except msgspec.ValidationError as error:
        raise _complaint(str(error)) from None


def _complaint(said: str) -> InvalidField | InvalidMessages:
    matched = PLACED.match(said)
    assert matched is not None
    text, place = matched[1], (matched[2] or "").removesuffix("[...]")  # a value of an object without fixed names
    if missing := re.fullmatch(r"Object missing required field `(.*)`", text):
        place = f"{place}.{missing[1]}" if place else missing[1]
        text = "is missing"
    else:
        text = re.sub(r"`([a-z |]+)`", _word, text).removesuffix(", got null")
        text = text.replace("Expected", "must be", 1).replace(", got ", ", not ").replace("Number out", "is out")
    if place == "messages":
        return InvalidMessages(f"`{place}` {text}", param=place)
    return InvalidField(f"`{place}` {text}", param=place, code=CODES.get(re.split(r"[.\[]", place)[0]))


def _word(matched: re.Match[str]) -> str:
    kinds = [kind for kind in matched[1].split(" | ") if kind != "null"]
    return " or ".join(WORDS.get(kind, kind) for kind in kinds) or "null"
