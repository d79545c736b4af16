"""A parameter's text -> its JSON value, typed by the tool's schema.

Dialects that write values without quotes leave the type to the schema. What does not fit its type stays a text: a
client can show it, and no reply is lost for it.

Thread: worker
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from typing import Any, NoReturn

from lattice_cli.prompt.signature import TEXT, Types

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?\Z")
_INTEGER = re.compile(r"-?(0|[1-9]\d*)\Z")
MOST_LITERAL = 100_000  # characters of a Python literal that are read


def value_of(text: str, types: Types) -> str:
    """JSON of what `text` means as one of `types` (see prompt/signature.py); a text where it means none of them."""
    bare = text.strip()
    if types != TEXT:
        word = bare.lower()
        if word in ("null", "none") and (not types or "null" in types or "string" not in types):
            return "null" if types else _quoted(text)
        if word in ("true", "false") and "boolean" in types:
            return word
        if types & {"integer", "number"} and (number := _number(bare, whole="number" not in types)):
            return number
        if (not types or types & {"object", "array"}) and (made := _structure(bare, types)):
            return made
    return _quoted(text)


def quoted_part(text: str) -> str:
    """Text as it stands between the quotes of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _number(text: str, *, whole: bool) -> str | None:
    if _INTEGER.match(text) or (not whole and _NUMBER.match(text)):
        return text
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value) or (whole and not (value.is_integer() and abs(value) < 2**53)):
        return None
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else json.dumps(value)


def _structure(text: str, types: Types) -> str | None:
    """An object or a list, in JSON or as Python prints it."""
    if text[:1] not in ("{", "[", "("):
        return None
    for strict in (True, False):
        try:
            value = json.loads(text, strict=strict, parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue
        return (text if strict else _quoted_value(value)) if _fits(value, types) else None
    if len(text) > MOST_LITERAL:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a bad escape in a literal
            value = ast.literal_eval(text)
        value = list(value) if isinstance(value, tuple) else value
        return _quoted_value(value) if _fits(value, types) else None
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _fits(value: Any, types: Types) -> bool:
    kind = "object" if isinstance(value, dict) else "array" if isinstance(value, list) else ""
    return bool(kind) and (not types or kind in types)


def _quoted_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
