"""Two terminals to read a screen from: pyte, which cuts rows on a resize, and one that wraps them anew.

Terminals differ in what a change of width does to rows that are already there: xterm leaves them, most
others (VTE, kitty, tmux, iTerm2, Windows Terminal) wrap them again. A view has to be right in both.

Thread: any
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pyte
from prompt_toolkit.utils import get_cwidth

JOINING = re.compile("[\u200d\ufe0f]")  # pyte drops what comes after these; so it shows each emoji by itself
SEQUENCE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")


class CuttingTerminal:
    """pyte with its scroll-back."""

    def __init__(self, columns: int, rows: int) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=0.5)
        self._stream = pyte.Stream(self.screen)

    def feed(self, text: str) -> None:
        self._stream.feed(JOINING.sub("", text))

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)

    def rows(self) -> list[str]:
        """Scroll-back and screen, without blanks at the ends of rows and rows at the end."""
        kept = [_text(line) for line in self.screen.history.top]
        return _bare([*kept, *(_text(self.screen.buffer[y]) for y in range(self.screen.lines))])

    @property
    def cursor_shown(self) -> bool:
        return not self.screen.cursor.hidden


def _text(line: dict[int, pyte.screens.Char]) -> str:
    return "".join(line[x].data for x in range(max(line, default=-1) + 1))


@dataclass
class WrappingTerminal:
    """Rows, and for each whether it goes on in the next; the few sequences that our region writes."""

    columns: int
    height: int
    _rows: list[str] = field(default_factory=lambda: [""])
    _wrapped: list[bool] = field(default_factory=lambda: [False])
    _y: int = 0
    _x: int = 0
    cursor_shown: bool = True

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            if match := SEQUENCE.match(text, at):
                self._obey(*match.groups())
                at = match.end()
                continue
            self._put(text[at])
            at += 1

    def resize(self, columns: int, rows: int) -> None:
        """Wrap every line anew; the cursor stays on its character."""
        lines, cursor, line = [], (0, 0), ""
        for y, row in enumerate(self._rows):
            if y == self._y:
                cursor = (len(lines), len(line) + self._x)
            line += row
            if not self._wrapped[y]:
                lines.append(line)
                line = ""
        self.columns, self.height = columns, rows
        self._rows, self._wrapped = [], []
        for number, whole in enumerate(lines):
            parts = [whole[i : i + columns] for i in range(0, len(whole), columns)] or [""]
            if number == cursor[0]:
                self._y, self._x = len(self._rows) + cursor[1] // columns, cursor[1] % columns
            self._rows += parts
            self._wrapped += [True] * (len(parts) - 1) + [False]

    def rows(self) -> list[str]:
        return _bare(self._rows)

    def _obey(self, private: str, number: str, name: str) -> None:
        if private:
            self.cursor_shown = {"25h": True, "25l": False}.get(number + name, self.cursor_shown)
        elif name == "A":
            top = max(0, len(self._rows) - self.height)  # what has scrolled away cannot be reached
            self._y = max(self._y - int(number or 1), top)
        elif name == "K":
            self._rows[self._y] = self._rows[self._y][: self._x]
        elif name == "J":
            self._rows[self._y] = self._rows[self._y][: self._x]
            del self._rows[self._y + 1 :], self._wrapped[self._y + 1 :]
            self._wrapped[self._y] = False
        else:
            assert name == "m", f"a sequence this terminal does not know: {name}"

    def _put(self, char: str) -> None:
        if char == "\r":
            self._x = 0
        elif char == "\n":
            self._down()
        else:
            assert get_cwidth(char) == 1, "this terminal counts a character as a cell"
            if self._x == self.columns:
                self._wrapped[self._y] = True
                self._down()
                self._x = 0
            row = self._rows[self._y].ljust(self._x)
            self._rows[self._y] = row[: self._x] + char + row[self._x + 1 :]
            self._x += 1

    def _down(self) -> None:
        self._y += 1
        if self._y == len(self._rows):
            self._rows.append("")
            self._wrapped.append(False)


def _bare(rows: list[str]) -> list[str]:
    rows = [row.rstrip() for row in rows]
    while rows and not rows[-1]:
        rows.pop()
    return rows
