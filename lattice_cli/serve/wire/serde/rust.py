"""How Rust prints floats, strings and JSON, where an answer of lattice_serve shows it.

Thread: any
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}


def spelled_float(value: float) -> str:
    """Shortest digits, as Python's; an exponent only below 1e-5 and from 1e16 on, without a plus or zeros in it."""
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    figures = "".join(map(str, digits))
    point = len(figures) + exponent
    head = "-" if sign else ""
    if value == 0:
        return f"{head}0.0"
    if exponent >= 0 and point <= 16:
        return f"{head}{figures}{'0' * exponent}.0"
    if 0 < point <= 16:
        return f"{head}{figures[:point]}.{figures[point:]}"
    if -5 < point <= 0:
        return f"{head}0.{'0' * -point}{figures}"
    tail = f".{figures[1:]}" if len(figures) > 1 else ""
    return f"{head}{figures[0]}{tail}e{point - 1}"


def quoted(text: str) -> str:
    """A string as Rust's debug form shows it."""
    shown = (ESCAPES.get(char) or (char if char.isprintable() else f"\\u{{{ord(char):x}}}") for char in text)
    return f'"{"".join(shown)}"'


def spelled_json(value: Any) -> str:
    """Compact JSON with names in order. Its depth is the reader's, so it may recurse."""
    match value:
        case dict():
            inner = ",".join(f"{spelled_json(name)}:{spelled_json(value[name])}" for name in sorted(value))
            return f"{{{inner}}}"
        case list():
            return f"[{','.join(map(spelled_json, value))}]"
        case float():
            return spelled_float(value)
        case _:
            return json.dumps(value, ensure_ascii=False)
