"""Bytes of a request -> a JSON object that is safe to walk through.

What the standard parser lets through and what crashes others later is refused here: bytes that are not
UTF-8, a name given twice, NaN and numbers without end, nesting without end, half of a surrogate pair.
Nothing of the body is echoed in a message except names of fields.

Thread: any
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

from lattice_cli.errors import InvalidField

MAX_DEPTH = 200
BOM = b"\xef\xbb\xbf"


def read_object(body: bytes) -> dict[str, Any]:
    """Parse a body. Cost: about 10 ms a megabyte.

    Raises: InvalidField (`invalid_request_body`), with `param` where one field is at fault.
    """
    if not body.strip():
        _refuse("the request has no body")
    value = _parse(_text(body.removeprefix(BOM)))
    if not isinstance(value, dict):
        _refuse("the body is not a JSON object")
    # PERF: bodies without many brackets and without such an escape, nearly all, need no walk.
    if b"\\ud" in body or b"\\uD" in body or body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_inside(value)
    return value


def _refuse(message: str, param: str | None = None) -> NoReturn:
    raise InvalidField(message, param=param, code="invalid_request_body")


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(f"the body is not UTF-8 (byte {error.start})")


def _parse(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_number)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        fault = error.msg.removesuffix(" at")
        _refuse(f"the body is not JSON: {fault[:1].lower()}{fault[1:]} at {where}")
    except RecursionError:
        _refuse(f"the body is nested deeper than {MAX_DEPTH} levels")
    except ValueError:  # an integer of more digits than Python converts
        _refuse("the body holds a number that is too large")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0][:64]
        _refuse(f"the field {json.dumps(twice)} is given twice in one object", param=twice)
    return value


def _constant(name: str) -> NoReturn:
    _refuse(f"the body is not JSON: {name} is not a number")


def _number(digits: str) -> int | float:
    """JSON knows one kind of number: `8.0` is the integer 8 to a field that wants one."""
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        _refuse("the body holds a number that is too large")
    return int(value) if value.is_integer() else value


def _check_inside(value: Any) -> None:
    for place, depth, inner in _walk(value):
        if depth > MAX_DEPTH:
            _refuse(f"the body is nested deeper than {MAX_DEPTH} levels")
        if isinstance(inner, str) and not _encodes(inner):
            where = f"`{place}`" if place else "the body"
            _refuse(f"{where} holds half of a surrogate pair, which is no character", param=place or None)


def _encodes(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _walk(value: Any) -> Iterator[tuple[str, int, Any]]:
    """Every value and every name inside, as (place, depth, value). Not recursive."""
    waiting: list[tuple[str, int, Any]] = [("", 1, value)]
    while waiting:
        place, depth, inner = waiting.pop()
        yield place, depth, inner
        if isinstance(inner, dict):
            for name, below in inner.items():
                yield place, depth, name
                waiting.append((f"{place}.{name}" if place else name, depth + 1, below))
        elif isinstance(inner, list):
            waiting.extend((f"{place}[{index}]", depth + 1, below) for index, below in enumerate(inner))
