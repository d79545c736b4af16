"""JSON read one value at a time, as the parser behind lattice_serve reads it: what it takes, what it refuses with
which words at which place. Knows no field; see shapes.py.

Python's own parser differs where it counts: it takes NaN, halves of surrogate pairs and any depth, and it must
have read all before anything can be said of a part.

Cost: 3 ms a megabyte of long strings, up to a second a megabyte of nothing but small numbers and brackets.

Thread: any
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from lattice_cli.serve.wire.serde.place import ARRAY, CLOSE, COLON, COMMA, DIGITS, END, MINUS, OBJECT, QUOTE, SerdeError
from lattice_cli.serve.wire.serde.tokens import WORDS, Tokens

MAX_DEPTH = 128
ENDED = {ARRAY: "EOF while parsing a list", OBJECT: "EOF while parsing an object"}

Pairs = list[tuple[str, Any]]


class Reader(Tokens):
    """Also lists and objects. A caller enters one, asks for `more` before each item, and leaves it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._depth = MAX_DEPTH

    def enter(self, kind: int, expected: str) -> None:
        """Past the opening bracket."""
        if self.peek() != kind:
            self.mismatch(expected)
        self._depth -= 1
        if self._depth == 0:
            self.fail("recursion limit exceeded", ahead=True)
        self.at += 1

    def more(self, kind: int, count: int) -> bool:
        """To the next item, after `count` of them; False at the closing bracket."""
        byte = self.peek()
        if byte == CLOSE[kind]:
            return False
        if byte == END:
            self.fail(ENDED[kind], ahead=True)
        if count and byte != COMMA:
            self.fail(f"expected `,` or `{chr(CLOSE[kind])}`", ahead=True)
        if count:
            self.at += 1
            byte = self.peek()
        if byte == CLOSE[kind]:
            self.fail("trailing comma", ahead=True)
        if byte == END:
            self.fail("EOF while parsing a value", ahead=True)
        if kind == OBJECT and byte != QUOTE:
            self.fail("key must be a string", ahead=True)
        return True

    def leave(self, kind: int) -> None:
        """Past the closing bracket, which must come now."""
        self._depth += 1
        byte = self.peek()
        if byte == END:
            self.fail(ENDED[kind], ahead=True)
        if byte == COMMA and kind == ARRAY:
            self.at += 1
            self.fail("trailing comma" if self.peek() == CLOSE[kind] else "trailing characters", ahead=True)
        if byte != CLOSE[kind]:
            self.fail("trailing comma" if byte == COMMA else "trailing characters", ahead=True)
        self.at += 1

    def wrong(self, kind: int, reason: str) -> NoReturn:
        """What is in the brackets is JSON, but not what it should be."""
        with suppress(SerdeError):
            self.leave(kind)
        self.fail(reason, data=True)

    def colon(self) -> None:
        """Past the colon behind a name."""
        byte = self.peek()
        if byte != COLON:
            self.fail(ENDED[OBJECT] if byte == END else "expected `:`", ahead=True)
        self.at += 1

    def end(self) -> None:
        """Nothing follows."""
        if self.peek() != END:
            self.fail("trailing characters", ahead=True)

    def anything(self, objects: Callable[[Pairs], Any] = dict) -> Any:
        """Any value; `objects` makes one of an object's pairs."""
        byte = self.peek()
        if byte == QUOTE:
            return self.string()
        if byte == ARRAY:
            return self._list(objects)
        if byte == OBJECT:
            return objects(self._pairs(objects))
        if byte in WORDS:
            return self.word()
        if byte == MINUS or byte in DIGITS:
            return self.number()
        self.no_value()

    def _list(self, objects: Callable[[Pairs], Any]) -> list[Any]:
        found: list[Any] = []
        self.enter(ARRAY, "")
        self.path.append(0)
        while self.more(ARRAY, len(found)):
            found.append(self.anything(objects))
            self.path[-1] = len(found)
        self.path.pop()
        self.leave(ARRAY)
        return found

    def _pairs(self, objects: Callable[[Pairs], Any]) -> Pairs:
        found: Pairs = []
        self.enter(OBJECT, "")
        while self.more(OBJECT, len(found)):
            name = self.string()
            self.path.append(name)
            self.colon()
            found.append((name, self.anything(objects)))
            self.path.pop()
        self.leave(OBJECT)
        return found
