"""Where a block that grows past the live rows may be cut: its beginning is printed for good, the rest goes on.

Knows how blocks look; knows no events. Both halves alone must look as they do together, and no mark may be open at the
cut that what follows could close. A table is cut between rows, and from then on its columns keep their widths.

Thread: any
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import replace

from lattice_cli.chat.blocks import Block, Columns, Kind, halves
from lattice_cli.chat.view import Painter, Row

KEPT_ROWS = 2  # of a long block, when its beginning is shown for good
CJK = 0x2E80  # from here on scripts break lines between any two letters
MAYBE_OPEN = re.compile(r"`|~~|\*(?!\s)|(?<!\w)_(?!\s)|\[[^\]]*$")  # shown marks that what follows may yet close
SPARE = 4  # cells a column may get beyond what its cells so far need


def settled(painter: Painter, block: Block, rows: list[Row], width: int) -> tuple[Block, Block] | None:
    """The part of a live block that can be printed, and the rest; None where it cannot be cut yet."""
    if block.kind in (Kind.CODE, Kind.FENCE):
        return None
    if block.table is not None or (block.text.startswith("|") and "\n" in block.text):
        return _table(painter, block, width) if block.kind is Kind.TEXT else None
    if block.text.startswith(">"):
        return _quotation(painter, block, rows, width)
    return _paragraph(painter, block, rows, width)


def _table(painter: Painter, block: Block, width: int) -> tuple[Block, Block] | None:
    """Between two rows. The head goes with the first of them."""
    lines = block.text.split("\n")
    columns, body = (block.table, lines) if block.table else (None, lines[2:])
    if len(body) <= KEPT_ROWS or not all(line.startswith("|") for line in lines):  # prose may be a row, or end it
        return None
    if columns is None:
        widths = _widths(painter, block, width)
        if not widths:  # it has bars, and is no table
            return None
        columns = Columns("\n".join(lines[:2]), widths, shown=False)
    first = replace(block, text="\n".join(body[:-KEPT_ROWS]), table=columns)
    return first, Block(block.kind, "\n".join(body[-KEPT_ROWS:]), block.indent, table=replace(columns, shown=True))


def _widths(painter: Painter, block: Block, width: int) -> tuple[int, ...]:
    """What the columns need, and a share of the room that is left: later cells may be longer."""
    widths = painter.table_widths(block, width)
    if not widths:
        return ()
    room = width - block.indent - painter.gutter * (len(widths) - 1) - sum(widths)
    return tuple(cells + max(0, min(room // len(widths), SPARE)) for cells in widths)


def _quotation(painter: Painter, block: Block, rows: list[Row], width: int) -> tuple[Block, Block] | None:
    """Between two of its lines."""
    lines = block.text.split("\n")
    for count in range(len(lines) - KEPT_ROWS, 0, -1):
        if lines[count].startswith(">"):
            parts = halves(block, len("\n".join(lines[:count])) + 1)
            if _same(painter, parts, rows, width):
                return parts
    return None


def _paragraph(painter: Painter, block: Block, rows: list[Row], width: int) -> tuple[Block, Block] | None:
    text = block.text
    places = [i for i in range(1, len(text)) if text[i].isalpha() and (text[i - 1] in " \n" or ord(text[i]) > CJK)]
    height = len(rows) - KEPT_ROWS
    found = bisect_right(places, height, key=lambda i: len(painter.rows(halves(block, i)[0], width)))
    if found == 0:
        return None
    parts = halves(block, places[found - 1])
    return parts if _same(painter, parts, rows, width) else None


def _same(painter: Painter, parts: tuple[Block, Block], rows: list[Row], width: int) -> bool:
    first, rest = (painter.rows(part, width) for part in parts)
    if painter.ansi([*first, *rest]) != painter.ansi(rows):
        return False
    plain = "\n".join("".join(segment.text for segment in row) for row in first)
    return parts[0].kind is Kind.THOUGHT or not MAYBE_OPEN.search(plain)
