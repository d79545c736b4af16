"""How blocks look: rows as text, nothing of the model's words lost.

Thread: any
"""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lattice_cli.chat.blocks import Block, Kind
from lattice_cli.chat.markdown_blocks import Markdown
from lattice_cli.chat.view import Painter
from lattice_cli.chat.wrap import cells
from lattice_cli.harmless import STEERING, harmless

pytestmark = pytest.mark.pure


class Out(io.StringIO):
    """Where a console would write; says its encoding."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:
        return self._encoding


def painter(encoding: str = "utf-8", *, colour: bool = False) -> Painter:
    out = Out(encoding)
    return Painter(Console(file=out, force_terminal=True, color_system="standard" if colour else None, width=80))


def shown(text: str, width: int = 79, encoding: str = "utf-8") -> list[str]:
    splitter, paint = Markdown(), painter(encoding)
    blocks = splitter.push(text) + splitter.close()
    return ["".join(segment.text for segment in row) for block in blocks for row in paint.finish(block, width)]


def test_paragraphs_items_and_headings_look_as_they_were_written() -> None:
    text = "# Title\n\nA **bold** word.\n\n- one\n  - two\n10. ten\n\n> said\n\n---"
    assert shown(text, 20) == [
        "Title",
        "",
        "A bold word.",
        "",
        "• one",
        "  • two",
        "10. ten",
        "",
        "▌ said",
        "",
        "────────────────────",
    ]


def test_a_terminal_without_unicode_gets_signs_it_has() -> None:
    """Report 130."""
    rows = shown("- one\n\n> said\n\n---\n\n| a |\n|---|\n| 1 |", 8, "ascii")
    assert rows == ["- one", "", "> said", "", "--------", "", "a", "--", "1"]


def test_long_text_is_wrapped_under_its_marker() -> None:
    assert shown("12. one two three four", 12) == ["12. one two", "    three", "    four"]


@pytest.mark.parametrize(
    "text",
    [
        "vector<int> and <b>bold</b>",
        "<div>",
        r"\(x_1\) and \[y\]",
        "[1]: http://example.org",
        "a [1] and [^2]",
        "![picture](http://example.org/a.png)",
        "https://example.org/a_b_c",
        "snake_case_name and 2 * 3 * 4",
        "&nbsp",
        "[ ] open",
        "= not a heading\n===",
    ],
)
def test_what_markdown_would_swallow_is_shown(text: str) -> None:
    """rich leaves out HTML, and with it `<int>`; link definitions vanish; TeX loses its backslashes."""
    assert shown(text) == text.split("\n")


def test_line_breaks_stay_where_the_model_made_them() -> None:
    """Poems and addresses: Markdown would join the lines."""
    assert shown("Roses are red\nViolets are blue") == ["Roses are red", "Violets are blue"]


def test_links_show_where_they_go_once() -> None:
    assert shown("[docs](http://a.org/b) <http://c.org> <me@d.org>") == ["docs (http://a.org/b) http://c.org me@d.org"]


def test_code_is_shown_as_it_is_without_frame_or_padding() -> None:
    """A frame ends up in what people copy."""
    code = "```python\n# *no* emphasis\ndef f():\n\treturn '**'   \n\n```"
    assert shown(code) == ["```python", "# *no* emphasis", "def f():", "    return '**'", "", "```"]


def test_a_long_code_line_is_one_row_that_the_terminal_may_wrap() -> None:
    line = "x = " + "1 + " * 50 + "1"
    assert shown(f"```python\n{line}\n```", 40)[1] == line


def test_code_is_highlighted_as_part_of_the_code_before_it() -> None:
    """Line by line, the inside of a docstring would be taken for code."""
    paint = painter(colour=True)
    paint.finish(Block(Kind.FENCE, "```python", language="python"), 79)
    lines = ('"""Say', "if it", '"""', "if x:")
    rows = [row for line in lines for row in paint.finish(Block(Kind.CODE, line), 79)]
    assert [row[0].text for row in rows] == ['"""', "if it", '"""', "if"]
    assert [row[0].style == rows[3][0].style for row in rows] == [False, False, False, True]


def test_an_unknown_language_is_plain() -> None:
    assert shown("```klingon\nqapla'\n```") == ["```klingon", "qapla'", "```"]


def test_a_table_loses_no_letter_in_a_narrow_window() -> None:
    """rich cuts a word that is too long with three dots."""
    word = "abcdefghijklmnopqrstuvwxyz"
    rows = shown(f"| k | v |\n|---|---|\n| {word} | 1 |", 20)
    assert "".join(row[:17].strip() for row in rows[2:]) == word


def test_thoughts_stand_apart() -> None:
    rows = painter().rows(Block(Kind.THOUGHT, "one two three"), 9)
    assert ["".join(segment.text for segment in row) for row in rows] == ["│ one two", "│ three"]


@pytest.mark.parametrize("text", ["👨‍👩‍👧" * 5, "🇫🇷" * 9, "⚠️" * 9, "三行诗" * 9, "👍🏽" * 9, "é" * 30])
def test_no_terminal_shows_a_live_row_wider_than_the_window(text: str) -> None:
    """Report 127: terminals disagree about the width of joined emoji; a row that wraps breaks the count of rows."""
    paint = painter()
    rows = paint.fitted(paint.rows(Block(Kind.TEXT, text), 19), 19)
    texts = ["".join(segment.text for segment in row) for row in rows]
    assert "".join(texts) == text
    assert max(map(cells, texts)) <= 19


def test_control_characters_of_a_model_steer_no_terminal() -> None:
    """A reply may hold the sequences that clear a screen or set a window's title."""
    assert harmless("a\x1b[2Jb\rc\td\x9b1me\n") == "a�[2Jbc\td�1me\n"


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]0;title\x07",
        "\x1b]52;c;aGk=\x1b\\",
        "\x9d0;title\x9c",
        "\x1bP1$r\x1b\\",
        "a\u202eb",
        "a\u2067b\u2069",
        "\u2028",
    ],
)
def test_titles_clipboards_and_turned_text_are_steered_by_no_model(text: str) -> None:
    """OSC, also as one C1 character; DCS; and marks that make code read as what it is not."""
    assert not STEERING.search(harmless(text))


def test_marks_that_only_help_to_read_stay() -> None:
    """Right-to-left marks, joiners, flags made of tags."""
    for text in ("א\u200f!", "👨\u200d👩", "🏴\U000e0067\U000e007f", "a\tb\n"):
        assert harmless(text) == text
