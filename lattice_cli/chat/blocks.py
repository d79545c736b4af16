"""Text as it arrives, cut into blocks: those that are finished for good, and the open last one.

Knows lines and markers; knows no terminal and no width. Joining what the blocks hold gives the text
back, less blank lines and list markers' spelling. A block, once closed, never changes, whatever follows:
a paragraph ends at a blank line, a list item where the next begins, a code line at its line break.

Thread: any
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from enum import Enum


class Kind(Enum):
    """How a block is shown."""

    TEXT = "text"  # Markdown: a paragraph, heading, table, quotation, rule
    ITEM = "item"  # Markdown behind a list marker
    CODE = "code"  # one line of code, shown as it is
    FENCE = "fence"  # the line that opens or closes code
    THOUGHT = "thought"  # plain text, apart from the answer


@dataclass(frozen=True, slots=True)
class Columns:
    """What the rows of a table need that is shown in parts: its head and the columns' widths in cells.

    `shown`: the head stands above already.
    """

    head: str
    widths: tuple[int, ...]
    shown: bool = True


@dataclass(frozen=True, slots=True)
class Block:
    """`indent` cells stand before it; `gap`: a blank line does; `language` is what a FENCE opens with."""

    kind: Kind
    text: str
    indent: int = 0
    marker: str = ""
    gap: bool = False
    language: str | None = None
    table: Columns | None = None


def halves(block: Block, count: int) -> tuple[Block, Block]:
    """The first `count` characters of a paragraph, and the rest as what stands right below them."""
    indent = block.indent + (len(block.marker) + 1 if block.marker else 0)
    kind = Kind.TEXT if block.kind is Kind.ITEM else block.kind
    first = replace(block, text=block.text[:count].rstrip())
    return first, Block(kind, block.text[count:].lstrip(), indent, table=block.table)


class Splitter:
    """Text in, finished blocks out. `live` is what the unfinished rest would be if it ended now."""

    def __init__(self, *, gap: bool = False) -> None:
        self._line = ""  # since the last line break
        self._joined: Block | None = None  # the line goes on a paragraph whose beginning is shown already
        self._open: Block | None = None
        self._gap = gap  # before the next block
        self._any = gap  # a gap is between two blocks, never at the top

    def push(self, text: str) -> list[Block]:
        """Take text in; the blocks it finished come out."""
        *lines, self._line = (self._line + text).split("\n")
        closed: list[Block] = []
        for line in lines:
            closed += self._end_line(line)
        return closed

    def live(self) -> list[Block]:
        """The blocks of what is not finished; the last may yet grow."""
        rest = copy.copy(self)
        closed = rest._end_line(rest._line) if rest._line else []
        return closed + ([rest._open] if rest._open else [])

    def close(self) -> list[Block]:
        """The text ended: all that is left."""
        blocks, self._line, self._open = self.live(), "", None
        return blocks

    def cut(self, rest: Block) -> None:
        """The one live block was shown but for `rest`, which goes on below it."""
        whole, _, last = rest.text.rpartition("\n") if self._line.strip() else (rest.text, "", "")
        self._open = replace(rest, text=whole) if whole else None
        self._gap, self._any = False, True
        if not whole:  # in the middle of the line that is coming
            self._joined, self._line = replace(rest, text=""), last

    def _end_line(self, line: str) -> list[Block]:
        if self._joined is None:
            return self._take(line)
        joined, self._joined = self._joined, None
        if line.strip():
            self._grow(line, joined)
        return []

    def _take(self, line: str) -> list[Block]:
        """One whole line."""
        raise NotImplementedError

    def _grow(self, line: str, new: Block) -> None:
        """Add a line to the open block, or begin `new` with it."""
        if self._open is None:
            self._open = replace(new, text=line)
        else:
            self._open = replace(self._open, text=f"{self._open.text}\n{line}" if self._open.text else line)

    def _shut(self, *more: Block) -> list[Block]:
        """Close what is open; `more` are blocks of one line each."""
        closed = [self._open] if self._open else []
        self._open = None
        return closed + [self._placed(block) for block in more]

    def _placed(self, block: Block) -> Block:
        placed = replace(block, gap=self._gap and self._any)
        self._gap, self._any = False, True
        return placed

    def _blank(self) -> list[Block]:
        closed = self._shut()
        self._gap = True
        return closed


class Thoughts(Splitter):
    """Reasoning: every line is a block of plain text."""

    def _take(self, line: str) -> list[Block]:
        if not line.strip():
            return self._blank()
        return self._shut(Block(Kind.THOUGHT, line))
