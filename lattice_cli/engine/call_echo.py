"""JSON as a model writes it -> JSON, piece by piece as it comes.

What is JSON comes out as it went in. Slips that have one reading are mended on the way: a bad escape (`\\d`), a line
break inside a string, single quotes, `True` and `None`, a comma before a bracket, brackets left open before the
marker that closes a call. What has no reading is passed on as it is: nothing is lost and nothing made up.

Thread: worker
"""

from __future__ import annotations

import json
import re
from enum import Enum

from lattice_cli.engine.text import held_suffix

_ORDINARY = {quote: re.compile(rf"[^{quote}\"\\\x00-\x1f]+") for quote in "\"'"}
_WORD = re.compile(r"[^\s,:\[\]{}\"'<]+")
_SPACE = re.compile(r"\s+")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?\Z")
_WORDS = {word: made for made in ("true", "false", "null") for word in (made, made.capitalize())} | {"None": "null"}
_PLAIN_ESCAPES = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")


class _Wants(Enum):
    VALUE = "a value"
    VALUE_OR_END = "a value, or the end of an empty list"
    KEY = "a key, or the end of an object"
    COLON = "a colon"
    COMMA = "a comma, or the end of what is open"


class JsonEcho:
    """Of one value, an object or a list. `done`: it is whole. `closer` is the marker that may cut it short."""

    def __init__(self, closer: str = "") -> None:
        self.done = False
        self._closer = closer
        self._open: list[str] = []  # the brackets that close what is open
        self._wants = _Wants.VALUE
        self._quote = ""  # of the string we are in
        self._comma = ""  # held back, with the space after it
        self._raw = False

    def take(self, text: str, final: bool = False) -> tuple[str, str]:
        """(what comes out, what of `text` is left). Left is what is not certain yet, or lies behind the end."""
        made: list[str] = []
        at = 0
        while at < len(text) and not self.done:
            step = self._in_raw if self._raw else self._in_string if self._quote else self._between
            piece, end = step(text, at, final)
            if end == at:
                if piece:
                    made.append(piece)
                    continue
                break
            made.append(piece)
            at = end
        return "".join(made), text[at:]

    # Inside a string.

    def _in_string(self, text: str, at: int, final: bool) -> tuple[str, int]:
        plain = _ORDINARY[self._quote].match(text, at)
        if plain:
            return plain[0], plain.end()
        letter = text[at]
        if letter == self._quote:
            self._quote = ""
            return '"', at + 1
        if letter == "\\":
            return self._escape(text, at, final)
        return json.dumps(letter)[1:-1], at + 1  # a control character, or the other kind of quote

    def _escape(self, text: str, at: int, final: bool) -> tuple[str, int]:
        if at + 1 == len(text):
            return ("\\\\", at + 1) if final else ("", at)
        letter = text[at + 1]
        if letter == "u":
            digits = text[at + 2 : at + 6]
            if len(digits) == 4 and _HEX.issuperset(digits):
                return text[at : at + 6], at + 6
            if len(digits) < 4 and _HEX.issuperset(digits) and not final:
                return "", at
            return "\\\\", at + 1
        if letter in _PLAIN_ESCAPES:
            return text[at : at + 2], at + 2
        return ("'", at + 2) if letter == "'" else ("\\\\", at + 1)

    # Between strings.

    def _between(self, text: str, at: int, final: bool) -> tuple[str, int]:
        space = _SPACE.match(text, at)
        if space:
            if self._comma:
                self._comma += space[0]
                return "", space.end()
            return space[0], space.end()
        letter = text[at]
        if letter == "<" and self._closer:
            seen = text[at : at + len(self._closer)]
            if seen == self._closer:
                self.done = True
                return self._closed(), at
            if self._closer.startswith(seen) and not final:
                return "", at
        if letter in "]}":
            return self._close(letter, at)
        if letter in "{[":
            return self._begin(letter, at)
        if letter in "\"'":
            return self._begin_string(letter, at)
        if letter in ",:":
            return self._separate(letter, at)
        return self._word(text, at, final)

    def _begin(self, letter: str, at: int) -> tuple[str, int]:
        if self._wants not in (_Wants.VALUE, _Wants.VALUE_OR_END):
            return self._broken(at)
        self._open.append("}" if letter == "{" else "]")
        self._wants = _Wants.KEY if letter == "{" else _Wants.VALUE_OR_END
        return self._after_comma() + letter, at + 1

    def _begin_string(self, letter: str, at: int) -> tuple[str, int]:
        if self._wants in (_Wants.COLON, _Wants.COMMA) or not self._open:
            return self._broken(at)
        self._wants = _Wants.COLON if self._wants is _Wants.KEY else _Wants.COMMA
        self._quote = letter
        return self._after_comma() + '"', at + 1

    def _separate(self, letter: str, at: int) -> tuple[str, int]:
        if self._wants is not (_Wants.COMMA if letter == "," else _Wants.COLON):
            return self._broken(at)
        if letter == ":":
            self._wants = _Wants.VALUE
            return ":", at + 1
        self._wants = _Wants.KEY if self._open[-1] == "}" else _Wants.VALUE
        self._comma = ","
        return "", at + 1

    def _close(self, letter: str, at: int) -> tuple[str, int]:
        early = self._wants in (_Wants.VALUE, _Wants.COLON) and not self._comma
        if not self._open or self._open[-1] != letter or early:
            return self._broken(at)
        self._open.pop()
        space, self._comma = self._comma[1:], ""
        self._wants = _Wants.COMMA
        self.done = not self._open
        return space + letter, at + 1

    def _word(self, text: str, at: int, final: bool) -> tuple[str, int]:
        word = _WORD.match(text, at)
        if word is None or self._wants not in (_Wants.VALUE, _Wants.VALUE_OR_END) or not self._open:
            return self._broken(at)
        if word.end() == len(text) and not final:
            return "", at
        known = _WORDS.get(word[0]) or (word[0] if _NUMBER.match(word[0]) else None)
        if known is None:
            return self._broken(at)
        self._wants = _Wants.COMMA
        return self._after_comma() + known, word.end()

    def _after_comma(self) -> str:
        comma, self._comma = self._comma, ""
        return comma

    def _closed(self) -> str:
        """What is missing at a marker that ends the call: brackets, and a value after a key."""
        missing = {_Wants.COLON: ":null", _Wants.VALUE: "" if self._comma else "null"}.get(self._wants, "")
        return missing + "".join(reversed(self._open))

    # What has no reading.

    def _broken(self, at: int) -> tuple[str, int]:
        self._raw = True
        return self._after_comma(), at

    def _in_raw(self, text: str, at: int, final: bool) -> tuple[str, int]:
        end = text.find(self._closer, at) if self._closer else -1
        if end >= 0:
            self.done = True
            return text[at:end], end
        keep = 0 if final or not self._closer else held_suffix(text[at:], (self._closer,))
        return text[at : len(text) - keep], len(text) - keep
