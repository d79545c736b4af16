"""Words and numbers of JSON as serde_json reads them, and what it says when a value is of another type than wanted.

Thread: any
"""

from __future__ import annotations

import math
import re
from typing import NoReturn

from lattice_cli.serve.wire.serde.place import ARRAY, CLOSE, DIGITS, END, MINUS, QUOTE
from lattice_cli.serve.wire.serde.rust import quoted, spelled_float
from lattice_cli.serve.wire.serde.strings import Strings

NUMBER_RULE = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
NUMBER = re.compile(NUMBER_RULE)
WORDS = {b"n"[0]: (b"null", None), b"t"[0]: (b"true", True), b"f"[0]: (b"false", False)}
NULL = b"n"[0]
MOST_DIGITS = 20  # of an integer of 64 bits, with its sign


class Tokens(Strings):
    """Every method reads the value that begins here, or raises SerdeError."""

    def word(self) -> bool | None:
        """`true`, `false` or `null`."""
        word, value = WORDS[self.data[self.at]]
        for letter in word:
            if self.at == len(self.data):
                self.fail("EOF while parsing a value")
            self.at += 1
            if self.data[self.at - 1] != letter:
                self.fail("expected ident")
        return value

    def number(self) -> int | float:
        """An integer of 64 bits, or a float: -0 is one, and so is what does not fit."""
        digits = self.skip_number().decode()
        if digits != "-0" and len(digits) <= MOST_DIGITS and digits.lstrip("-").isdigit():
            value = int(digits)
            if -(1 << 63) <= value < 1 << 64:
                return value
        double = float(digits)
        if math.isinf(double):
            self.fail("number out of range")
        return double

    def skip_number(self) -> bytes:
        """A number as it stands."""
        matched = NUMBER.match(self.data, self.at)
        if matched is None:  # a minus with no digit behind it
            ended = self.at + 1 == len(self.data)
            self.at += 1 if ended else 2
            self.fail("EOF while parsing a value" if ended else "invalid number")
        self.at = matched.end()
        rest = self.data[self.at : self.at + 3]
        if rest[:1] == b"." or (rest[:1].isdigit() and matched[0].lstrip(b"-") == b"0"):
            self.at += rest[:1] == b"."
            self.fail("EOF while parsing a value" if rest == b"." else "invalid number", ahead=True)
        if rest[:1] in (b"e", b"E"):
            wanted = 3 if rest[1:2] in (b"+", b"-") else 2
            self.at += min(wanted, len(rest))
            self.fail("invalid number" if len(rest) >= wanted else "EOF while parsing a value")
        return matched[0]

    def no_value(self) -> NoReturn:
        """Nothing that could be a value begins here."""
        self.fail("EOF while parsing a value" if self.peek() == END else "expected value", ahead=True)

    def mismatch(self, expected: str) -> NoReturn:
        """The value that begins here is none of `expected`."""
        byte = self.peek()
        if byte in WORDS:
            found = "null" if (word := self.word()) is None else f"boolean `{str(word).lower()}`"
        elif byte == MINUS or byte in DIGITS:
            number = self.number()
            found = f"integer `{number}`" if isinstance(number, int) else f"floating point `{spelled_float(number)}`"
        elif byte == QUOTE:
            found = f"string {quoted(self.string())}"
        elif byte in CLOSE:
            found = "sequence" if byte == ARRAY else "map"
        else:
            self.no_value()
        self.fail(f"invalid type: {found}, expected {expected}", data=True)
