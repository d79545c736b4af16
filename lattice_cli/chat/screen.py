"""The end of a terminal's text that may still change, redrawn in place; what is above it never is.

Knows rows and escape sequences; knows no Markdown. Between two drawings the cursor rests at the first
row of the region, hidden: however the terminal wraps the region anew when its width changes, that is
still where the region begins, so nothing has to be counted and nothing is left behind.

Thread: any
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from lattice_cli.console import HIDE, SHOW

BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"  # a frame, shown at once by terminals that know these
ERASE_RIGHT, ERASE_BELOW = "\x1b[K", "\x1b[J"


class Region:
    """One stream, one owner. `live` rows must be narrower than the terminal and fewer than its rows."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: list[str] = []
        self._lost = False

    def draw(self, done: Sequence[str], live: Sequence[str]) -> None:
        """Print `done` for good where the region began, and below it the region's new rows.

        A done row may be longer than the terminal is wide. Nothing is written when nothing changed.
        """
        if not done and list(live) == self._shown and not self._lost:
            return
        self._lost = False
        above = ERASE_BELOW + "".join(f"{row}\r\n" for row in done) if done else ""
        below = f"{ERASE_RIGHT}\r\n".join(live) + ERASE_BELOW
        back = f"\x1b[{len(live) - 1}A" if len(live) > 1 else ""
        self._write(f"{BEGIN}{HIDE}\r{above}{below}\r{back}{END}")
        self._shown = list(live)

    def lose(self) -> None:
        """A shell had the terminal: the region is where the cursor is now, and nothing of it is shown."""
        self._lost = True

    def close(self) -> None:
        """Take the live rows away and show the cursor. Harmless when there is nothing to take away."""
        self._write(f"\r{ERASE_BELOW}{SHOW}")
        self._shown = []

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows now; 80 by 24 where the terminal does not know."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except OSError:
        return 80, 24
    return size.columns or 80, size.lines or 24
