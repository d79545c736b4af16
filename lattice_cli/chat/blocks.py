"""Markdown as it arrives, cut into blocks: those that are finished for good, and the open last one.

Knows lines and markers; knows no terminal and no width. Joining what the blocks hold gives the text
back, less blank lines and list markers' spelling. A block, once closed, never changes, whatever follows:
a paragraph ends at a blank line, a list item where the next begins, a code line at its line break.

Thread: any
"""

from __future__ import annotations

import copy
import re
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
class Block:
    """`indent` cells stand before it; `gap`: a blank line does; `language` is what a FENCE opens with."""

    kind: Kind
    text: str
    indent: int = 0
    marker: str = ""
    gap: bool = False
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Fence:
    """An open code block: the marks that close it, at least as many, and what stands before its lines."""

    marks: str
    indent: int


def halves(block: Block, count: int) -> tuple[Block, Block]:
    """The first `count` characters of a paragraph, and the rest as what stands right below them."""
    indent = block.indent + (len(block.marker) + 1 if block.marker else 0)
    kind = Kind.TEXT if block.kind is Kind.ITEM else block.kind
    return replace(block, text=block.text[:count].rstrip()), Block(kind, block.text[count:].lstrip(), indent)


FENCE = re.compile(r"( *)(`{3,}|~{3,})([^`]*)")
ITEM = re.compile(r"( *)([-*+]|\d{1,9}[.)])(?: (.*)|)")
RULE = re.compile(r" {0,3}([-*_])( *\1){2,} *")
HEADING = re.compile(r" {0,3}#{1,6}(?: .*|)")


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

    def cut(self, count: int) -> Block:
        """Finish the first `count` characters of the one live block; the rest goes on below it."""
        (block,) = self.live()
        shown, rest = halves(block, count)
        whole, _, self._line = rest.text.rpartition("\n")
        self._joined = replace(rest, text="")
        self._gap, self._any = False, True
        self._open = replace(rest, text=whole) if whole else None
        return shown

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


class Markdown(Splitter):
    """An answer."""

    def __init__(self, *, gap: bool = False) -> None:
        super().__init__(gap=gap)
        self._fence: Fence | None = None
        self._listed = False  # inside a list, where an indented line goes on an item

    def _take(self, line: str) -> list[Block]:
        line = line.rstrip("\r")
        if self._fence is not None:
            return [self._code(line, self._fence)]
        if not line.strip():
            return self._blank()
        line = line.expandtabs(4)
        if match := FENCE.fullmatch(line):
            return self._open_fence(match)
        if RULE.fullmatch(line) or HEADING.fullmatch(line):
            self._listed = False
            return self._shut(Block(Kind.TEXT, line.strip()))
        if match := ITEM.fullmatch(line):
            return self._item(match)
        if self._open is not None:
            self._grow(line.strip() if self._open.kind is Kind.ITEM else line[self._open.indent :], self._open)
            return []
        return self._begin(line)

    def _begin(self, line: str) -> list[Block]:
        """The first line of a paragraph, or of code that is only indented."""
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        self._listed = self._listed and indent > 0
        if indent >= 4 and not self._listed:
            return self._shut(Block(Kind.CODE, line))
        self._open = self._placed(Block(Kind.TEXT, text, indent if self._listed else 0))
        return []

    def _item(self, match: re.Match[str]) -> list[Block]:
        indent, marker, text = len(match[1]), match[2], (match[3] or "").strip()
        self._listed = True
        block = Block(Kind.ITEM, text, indent, marker if marker[-1] in ".)" else "•")
        inner = FENCE.fullmatch(text)
        if inner is None:
            closed = self._shut()
            self._open = self._placed(block)
            return closed
        closed = self._shut(replace(block, text=""))
        return closed + self._open_fence(inner, indent + len(marker) + 1)

    def _open_fence(self, match: re.Match[str], indent: int | None = None) -> list[Block]:
        self._fence = Fence(match[2], len(match[1]) if indent is None else indent)
        language = match[3].strip().partition(" ")[0].lower()
        return self._shut(Block(Kind.FENCE, match[2] + match[3].rstrip(), self._fence.indent, language=language))

    def _code(self, line: str, fence: Fence) -> Block:
        bare = line.strip(" ")
        if bare and bare[0] == fence.marks[0] and set(bare) == {bare[0]} and len(bare) >= len(fence.marks):
            self._fence = None
            return self._placed(Block(Kind.FENCE, bare, fence.indent))
        before = len(line) - len(line.lstrip(" "))
        return self._placed(Block(Kind.CODE, line[min(before, fence.indent) :], fence.indent))
