"""What a field may hold, as the derived readers behind lattice_serve have it: wrong types, names given twice and
missing ones are faults, unknown names are passed over, and an array may stand for an object, field by field.

Thread: any
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lattice_cli.serve.wire.serde.place import ARRAY, DIGITS, MINUS, OBJECT, QUOTE
from lattice_cli.serve.wire.serde.reader import Reader
from lattice_cli.serve.wire.serde.skipping import skip
from lattice_cli.serve.wire.serde.tokens import NULL, WORDS

Shape = Callable[[Reader], Any]


class Field(NamedTuple):
    """`default` makes the value of a field that is not there; None: it must be there."""

    shape: Shape
    default: Callable[[], Any] | None = None


def text(reader: Reader) -> str:
    if reader.peek() != QUOTE:
        reader.mismatch("a string")
    return reader.string()


def boolean(reader: Reader) -> bool:
    if reader.peek() not in WORDS or reader.peek() == NULL:
        reader.mismatch("a boolean")
    return bool(reader.word())


def float32(reader: Reader) -> float:
    """Any number; it is not narrowed."""
    _must_be_number(reader, "f32")
    return float(reader.number())


def whole(kind: str) -> Shape:
    """An unsigned integer of 64 bits; `8.0` is none."""

    def read(reader: Reader) -> int:
        _must_be_number(reader, kind)
        begin, value = reader.at, reader.number()
        if isinstance(value, float):
            reader.at = begin
            reader.mismatch(kind)
        if value < 0:
            reader.fail(f"invalid value: integer `{value}`, expected {kind}", data=True)
        return value

    return read


def _must_be_number(reader: Reader, expected: str) -> None:
    if reader.peek() != MINUS and reader.peek() not in DIGITS:
        reader.mismatch(expected)


def option(shape: Shape) -> Field:
    """A field that may be null or left out."""

    def read(reader: Reader) -> Any:
        return reader.word() if reader.peek() == NULL else shape(reader)

    return Field(read, lambda: None)


def anything(reader: Reader) -> Any:
    """Any value, as Python has it."""
    return reader.anything()


def several(shape: Shape) -> Shape:
    """A list of these."""

    def read(reader: Reader) -> list[Any]:
        found: list[Any] = []
        reader.enter(ARRAY, "a sequence")
        reader.path.append(0)
        while reader.more(ARRAY, len(found)):
            found.append(shape(reader))
            reader.path[-1] = len(found)
        reader.path.pop()
        reader.leave(ARRAY)
        return found

    return read


def record(name: str, fields: Mapping[str, Field]) -> Shape:
    """An object of these fields, as a dictionary of all of them."""

    def read(reader: Reader) -> dict[str, Any]:
        if reader.peek() == ARRAY:
            return _listed(reader, name, fields)
        reader.enter(OBJECT, f"struct {name}")
        found: dict[str, Any] = {}
        count = 0
        while reader.more(OBJECT, count):
            _member(reader, fields, found)
            count += 1
        for field, (_, default) in fields.items():
            if field not in found:
                if default is None:
                    reader.wrong(OBJECT, f"missing field `{field}`")
                found[field] = default()
        reader.leave(OBJECT)
        return found

    return read


def _member(reader: Reader, fields: Mapping[str, Field], found: dict[str, Any]) -> None:
    name = reader.string()
    if name in found:
        reader.wrong(OBJECT, f"duplicate field `{name}`")
    reader.path.append(name)
    reader.colon()
    if name in fields:
        found[name] = fields[name].shape(reader)
    else:
        skip(reader)
    reader.path.pop()


def _listed(reader: Reader, name: str, fields: Mapping[str, Field]) -> dict[str, Any]:
    """An array that stands for an object: its fields in order, the last ones perhaps not there."""
    found: dict[str, Any] = {}
    reader.enter(ARRAY, "")
    reader.path.append(0)
    for field, (shape, _) in fields.items():
        if not reader.more(ARRAY, len(found)):
            break
        found[field] = shape(reader)
        reader.path[-1] = len(found)
    reader.path.pop()
    given = len(found)
    for field, (_, default) in fields.items():
        if field not in found:
            if default is None:
                elements = "1 element" if len(fields) == 1 else f"{len(fields)} elements"
                reader.wrong(ARRAY, f"invalid length {given}, expected struct {name} with {elements}")
            found[field] = default()
    reader.leave(ARRAY)
    return found
