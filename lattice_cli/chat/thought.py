"""One thought of a model, as it comes: its last rows are live, and when it is over one row says how long it took.

Knows texts and blocks; draws nothing.

Thread: any
"""

from __future__ import annotations

from lattice_cli.chat.blocks import Block, Thoughts
from lattice_cli.chat.view import Painter, Row


class Thought:
    """`text` is all of it. Only its last lines are painted, however long it gets."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._splitter = Thoughts()
        self._lines: list[Block] = []
        self._texts: list[str] = []

    def push(self, text: str) -> None:
        """Take text in."""
        self._texts.append(text)
        self._lines += self._splitter.push(text)

    @property
    def text(self) -> str:
        return "".join(self._texts).strip()

    def rows(self, painter: Painter, width: int, most: int) -> list[Row]:
        """Its last rows, at most `most`."""
        self._lines = self._lines[-most:]
        blocks = [*self._lines, *self._splitter.live()][-most:]
        return [row for block in blocks for row in painter.rows(block, width)][-most:] if most > 0 else []

    def seconds(self, now_s: float) -> float:
        """Since it began."""
        return now_s - self._began_s

    def folded(self, now_s: float, *, ended: bool) -> str:
        """What is left of it on the screen. `ended` False: it was stopped."""
        return f"thought for {self.seconds(now_s):.1f} s" + ("" if ended else ", and was stopped")


def unfolded(painter: Painter, text: str, width: int) -> list[str]:
    """A thought as rows of a terminal, whole."""
    splitter = Thoughts()
    blocks = splitter.push(text) + splitter.close()
    return painter.ansi([row for block in blocks for row in painter.rows(block, width)])
