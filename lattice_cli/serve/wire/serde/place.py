"""A place in the bytes of a JSON body, and the way the parser behind lattice_serve (serde_json) says what is wrong
there. Source: https://docs.rs/serde_json/latest/serde_json/struct.Error.html, https://docs.rs/serde_path_to_error

Thread: any
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

# NOTE: possessive, so that no input makes the matcher go back; no groups that capture (cpython 101955).
SPACE_RULE = rb"[ \n\t\r]*+"
SPACE = re.compile(SPACE_RULE)

QUOTE, COMMA, COLON, MINUS, END = b'"'[0], b","[0], b":"[0], b"-"[0], -1
ARRAY, OBJECT = b"["[0], b"{"[0]
CLOSE = {ARRAY: b"]"[0], OBJECT: b"}"[0]}
DIGITS = range(0x30, 0x3A)


class SerdeError(Exception):
    """Where reading stopped. `data`: it was JSON, but of another shape; else it was no JSON."""

    def __init__(self, reason: str, line: int, column: int, path: Sequence[str | int], *, data: bool) -> None:
        super().__init__(reason)
        self.data = data
        self._said = f"{reason} at line {line} column {column}"
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        self._path = steps[1:] if steps.startswith(".") else steps

    def sentence(self) -> str:
        """As a server prints it: path, reason, line and column (both count bytes)."""
        return f"{self._path}: {self._said}" if self._path else self._said


class Place:
    """`at` is the next byte; `path` are the names and indices that lead here."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.path: list[str | int] = []

    def fail(self, reason: str, *, ahead: bool = False, data: bool = False) -> NoReturn:
        """Raise SerdeError for what was read up to here, or for the byte ahead."""
        at = min(len(self.data), self.at + 1) if ahead else self.at
        line_begin = self.data.rfind(b"\n", 0, at) + 1
        line = 1 + self.data.count(b"\n", 0, line_begin)
        raise SerdeError(reason, line, at - line_begin, self.path, data=data)

    def past(self, pattern: re.Pattern[bytes]) -> None:
        """Past what the pattern takes, which may be nothing."""
        matched = pattern.match(self.data, self.at)
        assert matched is not None
        self.at = matched.end()

    def peek(self) -> int:
        """The next byte that is no white space; END at the end."""
        self.past(SPACE)
        return self.data[self.at] if self.at < len(self.data) else END
