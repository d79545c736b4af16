"""Strings of JSON as serde_json reads them, and what it says of each thing that may be wrong with one.

Thread: any
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from lattice_cli.serve.wire.serde.place import QUOTE, Place

PLAIN_RULE = rb'[^"\\\x00-\x1f]*+'
STRING_RULE = rb'"' + PLAIN_RULE + rb'(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})' + PLAIN_RULE + rb')*+"'
PLAIN, STRING = re.compile(PLAIN_RULE), re.compile(STRING_RULE)


class Strings(Place):
    """The place is at a quotation mark when these are called."""

    def string(self) -> str:
        """A string's text; its bytes must be UTF-8 and its surrogates in pairs."""
        begin = self.at
        raw = self.skip_string()
        try:
            text = raw[1:-1].decode()
            if b"\\" in raw:
                text = str(json.loads(f'"{text}"'))
                text.encode()
        except UnicodeError:
            self.at = begin
            self._tell_fault(pairs=True)
        return text

    def skip_string(self) -> bytes:
        """A string as it stands, quotes included; neither UTF-8 nor surrogates are looked at."""
        matched = STRING.match(self.data, self.at)
        if matched is None:
            self._tell_fault(pairs=False)
        self.at = matched.end()
        return matched[0]

    def _tell_fault(self, *, pairs: bool) -> NoReturn:
        """Find what is wrong with the string that begins here."""
        self.at += 1
        while True:
            self.past(PLAIN)
            byte = self._next()
            if byte == QUOTE:
                self.fail("invalid unicode code point")
            if byte < 0x20:
                self.fail("control character (\\u0000-\\u001F) found while parsing a string")
            escape = self._next()
            if escape not in b'"\\/bfnrtu':
                self.fail("invalid escape")
            if escape == b"u"[0] and 0xD800 <= (unit := self._hex()) <= 0xDFFF and pairs:
                self._pair(unit)

    def _next(self) -> int:
        if self.at == len(self.data):
            self.fail("EOF while parsing a string")
        self.at += 1
        return self.data[self.at - 1]

    def _hex(self) -> int:
        digits = self.data[self.at : self.at + 4]
        self.at += len(digits)
        if len(digits) < 4:
            self.fail("EOF while parsing a string")
        if not re.fullmatch(rb"[0-9a-fA-F]{4}", digits):
            self.fail("invalid escape")
        return int(digits, 16)

    def _pair(self, unit: int) -> None:
        """The second half must follow the first."""
        if unit < 0xDC00:
            for wanted in b"\\u":
                if self._next() != wanted:
                    self.fail("unexpected end of hex escape")
            if 0xDC00 <= self._hex() <= 0xDFFF:
                return
        self.fail("lone leading surrogate in hex escape")
