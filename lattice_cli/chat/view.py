"""How a block looks: Block in, rows of a terminal out, with rich.

Knows Markdown, styles and cells; knows no events and draws nothing. Nothing of a text is lost on the
way: what Markdown would swallow (HTML, link targets, TeX's backslashes, single line breaks) is shown.

Thread: any
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import dropwhile

from rich.console import Console, Group, RenderableType
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from lattice_cli.chat.blocks import Block, Kind
from lattice_cli.chat.rendered import DIM, GUTTER, SafeMarkdown, wrapped
from lattice_cli.chat.wrap import cells
from lattice_cli.harmless import harmless

Row = list[Segment]

CODE_CONTEXT_LINES = 40  # PERF: so many are highlighted again with each line, 2.5 ms; with all of them it grows
CODE_THEME = "ansi_dark"  # the terminal's own colours
THEME = Theme(
    {
        "markdown.code": "cyan",
        "markdown.h1": "bold underline",
        "markdown.h2": "bold underline",
        "markdown.h3": "bold",
        "markdown.h4": "bold",
        "markdown.h5": "bold",
        "markdown.h6": "bold",
        "markdown.link": "none",
        "markdown.link_url": "cyan",
        "markdown.block_quote": "none",
        "markdown.table.header": "bold",
        "markdown.table.border": "dim",
    }
)


class Painter:
    """Paints the blocks of one answer after another. `console` says which colours and characters there are."""

    def __init__(self, console: Console) -> None:
        console.push_theme(THEME)
        self._console = console
        self.fancy = console.encoding.lower().startswith("utf")
        self.gutter = GUTTER
        self.begin()

    def letters(self, text: str) -> str:
        """What of a text a terminal may be sent, and can show: what its encoding lacks is a question mark already when
        widths are counted.
        """
        text = harmless(text)
        return text if self.fancy else text.encode(self._console.encoding, "replace").decode(self._console.encoding)

    def begin(self) -> None:
        """A new answer: nothing of the last one's code goes on."""
        self._code: list[str] = []
        self._language = ""

    def rows(self, block: Block, width: int) -> list[Row]:
        """The rows of a block, at most `width` cells each, code lines whole. Cost: about 1 ms a paragraph."""
        rows = self._rows(block, max(width - block.indent, 8))
        gap: list[Row] = [[]] if block.gap else []
        return gap + [[Segment(" " * block.indent), *row] if block.indent else row for row in rows]

    def finish(self, block: Block, width: int) -> list[Row]:
        """`rows`, of a block that will not change. Code is highlighted now, as what follows the code before it."""
        rows = self.rows(block, width)
        if block.kind is Kind.FENCE:
            self._code, self._language = [], block.language or ""
        elif block.kind is Kind.CODE:
            rows[-1] = [*rows[-1][:-1], *self._highlighted(rows[-1][-1])]
            self._code = [*self._code, block.text.expandtabs(4)][-CODE_CONTEXT_LINES:]
        return rows

    def table_widths(self, block: Block, width: int) -> tuple[int, ...]:
        """The cells that each column of a table gets; empty where the block is none."""
        markdown = SafeMarkdown(block.text)
        self._render(markdown, max(width - block.indent, 8))
        return markdown.shown_widths

    def note(self, text: str) -> Row:
        """A row of talk among the answer's."""
        return [Segment(text, DIM)]

    def fitted(self, rows: Sequence[Row], width: int) -> list[Row]:
        """Rows that no terminal shows wider than `width`: code is folded, joined emoji may be cut."""
        return [part for row in rows for part in _folded(row, width)]

    def ansi(self, rows: Sequence[Row]) -> list[str]:
        """Rows as a terminal takes them, without line breaks."""
        painted = []
        for row in rows:
            with self._console.capture() as capture:
                self._console.print(Segments(row), end="", crop=False)
            painted.append(capture.get())
        return painted

    def _rows(self, block: Block, width: int) -> list[Row]:
        match block.kind:
            case Kind.CODE:
                return [[Segment(block.text.expandtabs(4))]]
            case Kind.FENCE:
                return [[Segment(block.text, DIM)]]
            case Kind.THOUGHT:
                gutter = Segment("│ " if self.fancy else "| ", DIM)
                return [
                    [gutter, *row]
                    for row in self._render(Group(*wrapped(Text(block.text, style=DIM), width - 2)), width - 2)
                ]
            case Kind.ITEM:
                return self._item_rows(block, width)
            case Kind.TEXT if block.table is not None:
                text = f"{block.table.head}\n{block.text}"
                return self._render(SafeMarkdown(text, widths=block.table.widths, headless=block.table.shown), width)
            case Kind.TEXT:
                return self._text_rows(block.text, width)

    def _item_rows(self, block: Block, width: int) -> list[Row]:
        marker = block.marker if self.fancy or block.marker != "•" else "-"
        first, rest = Segment(marker + " "), Segment(" " * (len(marker) + 1))
        rows = self._text_rows(block.text, max(width - len(marker) - 1, 8)) or [[]]
        return [[first if i == 0 else rest, *row] for i, row in enumerate(rows)]

    def _text_rows(self, text: str, width: int) -> list[Row]:
        rows = self._render(SafeMarkdown(text), width)
        return rows or self._render(Text(text), width)

    def _highlighted(self, plain: Segment) -> Row:
        """One line of code in colours, as part of the code before it."""
        if not self._language:
            return [plain]
        code = "\n".join([*self._code, plain.text])
        syntax = Syntax(code, self._language, theme=CODE_THEME, background_color="default")
        line = syntax.highlight(code).split("\n", allow_blank=True)[len(self._code) :][:1]
        if not line or line[0].plain != plain.text:  # a lexer that makes other lines of it
            return [plain]
        return _trimmed([*line[0].render(self._console)])

    def _render(self, what: RenderableType, width: int) -> list[Row]:
        """Rows without blanks at their end, without empty rows above and below."""
        lines = self._console.render_lines(what, self._console.options.update_width(max(width, 8)), pad=False)
        rows = [_trimmed(line) for line in lines]
        for _ in range(2):
            rows = [*dropwhile(lambda row: not row, rows)][::-1]
        return rows


def _trimmed(line: Sequence[Segment]) -> Row:
    row = [Segment(text, style) for text, style, control in line if text and not control]
    while row and not row[-1].text.strip(" "):
        row.pop()
    if row:
        row[-1] = Segment(row[-1].text.rstrip(" "), row[-1].style)
    return row


def _folded(row: Row, width: int) -> Iterator[Row]:
    """One row as several when some terminal would show it wider than `width`."""
    part: Row = []
    room = width
    for text, style, _ in row:
        start = 0
        for i, char in enumerate(text):
            size = cells(char)
            if size > room:
                yield [*part, Segment(text[start:i], style)]
                part, start, room = [], i, width
            room -= size
        part.append(Segment(text[start:], style))
    yield part
