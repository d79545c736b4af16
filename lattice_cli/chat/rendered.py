"""Markdown's elements as rich draws them, less what rich loses: nothing of a text is left out or cut.

Knows rich's Markdown; knows no blocks.

Thread: any
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markdown_it.token import Token
from rich import box
from rich import markdown as md
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from lattice_cli.chat.markdown import parsed
from lattice_cli.chat.wrap import breaks

DIM = Style(dim=True)
GUTTER = 3  # cells between two columns
LEAST = 2  # cells of a column


def wrapped(text: Text, width: int) -> Iterator[Text]:
    """The rows of a text; its line breaks stay."""
    for line in text.split("\n", allow_blank=True):
        line.expand_tabs(4)
        for row in line.divide(breaks(line.plain, width)):
            row.no_wrap, row.overflow = True, "ignore"
            yield row


class _Paragraph(md.Paragraph):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from wrapped(self.text, options.max_width)


class _Quote(md.BlockQuote):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bar = "▌ " if console.encoding.lower().startswith("utf") else "> "
        for line in console.render_lines(self.elements, options.update_width(options.max_width - 2), pad=False):
            yield from [Segment(bar, DIM), *line, Segment.line()]


class _Rule(md.HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="dim", characters="─" if console.encoding.lower().startswith("utf") else "-")


class _Code(md.CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(str(self.text).rstrip(), style="cyan")


class _Heading(md.Heading):
    LEVEL_ALIGN = {}  # noqa: RUF012 - all to the left


class _Table(md.TableElement):
    """Its widths are ours, so that a table that is printed in parts keeps them; long words are folded."""

    markdown: SafeMarkdown

    @classmethod
    def create(cls, markdown: md.Markdown, token: Token) -> _Table:
        assert isinstance(markdown, SafeMarkdown)
        element = cls()
        element.markdown = markdown
        return element

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heads = [cell.content for cell in self.header.row.cells] if self.header and self.header.row else []
        rows = [[cell.content for cell in row.cells] for row in self.body.rows] if self.body else []
        room = options.max_width - GUTTER * (len(heads) - 1)
        natural = self.markdown.widths or [max(map(_cells, column)) for column in zip(heads, *rows, strict=True)]
        widths = fitting(natural, room)
        self.markdown.shown_widths = tuple(widths)
        grid = Table(
            box=box.SIMPLE,
            style="markdown.table.border",
            header_style="markdown.table.header",
            show_edge=False,
            pad_edge=False,
            show_header=not self.markdown.headless,
        )
        for head, width in zip(heads, widths, strict=True):
            grid.add_column(head, width=width, overflow="fold")
        for row in rows:
            grid.add_row(*row)
        yield grid


def _cells(text: Text) -> int:
    return max(map(cell_len, text.plain.split("\n")))


def fitting(widths: Sequence[int], room: int) -> list[int]:
    """Widths of at most `room` cells together: the widest are made equal, the narrow ones stay as they are.

    No column is narrower than a wide character, even where that takes more than the room there is.
    """
    most = max(widths, default=0)
    while most > LEAST and sum(min(width, most) for width in widths) > room:
        most -= 1
    return [max(min(width, most), LEAST) for width in widths]


class SafeMarkdown(md.Markdown):
    """rich's Markdown, less its losses."""

    elements = {  # noqa: RUF012
        **md.Markdown.elements,
        "paragraph_open": _Paragraph,
        "blockquote_open": _Quote,
        "hr": _Rule,
        "fence": _Code,
        "code_block": _Code,
        "heading_open": _Heading,
        "table_open": _Table,
    }

    def __init__(self, text: str, *, widths: Sequence[int] = (), headless: bool = False) -> None:
        """`widths` are of a table's columns, where they are settled; `headless`: its head was shown before."""
        super().__init__("", hyperlinks=False)
        self.parsed = parsed(text)
        self.widths = widths
        self.headless = headless
        self.shown_widths: tuple[int, ...] = ()
