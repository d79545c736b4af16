"""An answer's Markdown as it arrives, line by line, in blocks.

Knows the marks that begin and end a block; what they mean inside one is markdown.py's.

Thread: any
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from lattice_cli.chat.blocks import Block, Kind, Splitter

FENCE = re.compile(r"( *)(`{3,}|~{3,})([^`]*)")
ITEM = re.compile(r"( *)([-*+]|\d{1,9}[.)])(?: (.*)|)")
RULE = re.compile(r" {0,3}([-*_])( *\1){2,} *")
QUOTATION = re.compile(r" {0,3}>")
HEADING = re.compile(r" {0,3}#{1,6}(?: .*|)")


@dataclass(frozen=True, slots=True)
class Fence:
    """An open code block: the marks that close it, at least as many, and what stands before its lines."""

    marks: str
    indent: int


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
        if self._open is not None and (not QUOTATION.match(line) or self._open.text.startswith(">")):
            before = len(line) - len(line.lstrip(" "))
            cut = before if self._open.kind is Kind.ITEM else min(before, self._open.indent)
            self._grow(line[cut:].rstrip() if self._open.kind is Kind.ITEM else line[cut:], self._open)
            return []
        return self._shut() + self._begin(line)

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
