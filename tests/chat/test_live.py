"""Events in, a screen out: every row once, in terminals that cut rows on a resize and in those that wrap them.

Thread: any
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pytest
from rich.console import Console

from lattice_cli.chat.live import LiveView
from lattice_cli.chat.markdown_blocks import Markdown
from lattice_cli.chat.view import Painter
from lattice_cli.events import Piece, Prefilled, Started
from lattice_cli.job import Channel
from tests.chat.emulator import CuttingTerminal, WrappingTerminal

pytestmark = pytest.mark.wire

Terminal = CuttingTerminal | WrappingTerminal
Make = Callable[[int, int], Terminal]
BOTH = pytest.mark.parametrize("make", [CuttingTerminal, WrappingTerminal])


@dataclass
class Out:
    """A terminal as a stream, with all that was written."""

    terminal: Terminal
    encoding: str = "utf-8"
    log: str = ""

    def write(self, text: str) -> int:
        self.log += text
        self.terminal.feed(text)
        return len(text)

    def flush(self) -> None: ...
    def isatty(self) -> bool:
        return True


class Stage:
    """A view on a terminal, with a clock by which every event is due to be drawn."""

    def __init__(self, terminal: Terminal, columns: int, rows: int) -> None:
        self.terminal, self.columns, self.height, self.now_s = terminal, columns, rows, 0.0
        self.out = Out(terminal)
        console = Console(file=self.out, force_terminal=True, color_system="standard", width=columns)  # type: ignore[arg-type]
        self.thinking: Literal["show", "hide"] = "show"
        self.typed = ""
        self.view = LiveView(
            self.out,  # type: ignore[arg-type]
            Painter(console),
            lambda: (self.columns, self.height),
            self._clock,
            thinking=lambda: self.thinking,
            typed=lambda: self.typed,
        )
        self.view.begin()

    def _clock(self) -> float:
        return self.now_s

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.height = columns, rows
        self.terminal.resize(columns, rows)

    def say(self, text: str, channel: Channel = Channel.ANSWER, size: int = 17) -> None:
        for at in range(0, len(text), size):
            self.now_s += 0.1
            self.view.show(Piece("job", channel, text[at : at + size]))


def expected(text: str, width: int) -> list[str]:
    """The rows of an answer painted at once."""
    splitter, console = Markdown(), Console(width=width, force_terminal=True, color_system=None)
    painter = Painter(console)
    blocks = splitter.push(text) + splitter.close()
    return ["".join(s.text for s in row).rstrip() for block in blocks for row in painter.finish(block, width)]


def spaced(row: str) -> str:
    """A table printed in parts leaves its columns room for what may come; the rest is to the letter."""
    return re.sub("─+", "─", re.sub("(?<=[^ ]) {3,}(?=[^ ])", "   ", row))


WORDS = [f"word{i}" for i in range(200)]
POEM = "".join(f"line number {i} of the answer\n" for i in range(100))
PROGRAM = "Here:\n\n```python\n" + "".join(f"x{i} = {i}\n" for i in range(80)) + "```\nDone."
LIST = "".join(f"{i}. item **{i}** " + "goes on and on " * (i % 9) + "\n" for i in range(1, 40))
PARAGRAPH = " ".join(WORDS)
TABLE = "| n | square |\n|---|---|\n" + "".join(f"| {i} | {i * i} |\n" for i in range(30))
QUOTE = "".join(f"> quoted {i}\n" for i in range(40))
ALL = [POEM, PROGRAM, LIST, PARAGRAPH, TABLE, QUOTE]
NAMES = ["poem", "program", "list", "paragraph", "table", "quote"]


@BOTH
@pytest.mark.parametrize("text", ALL, ids=NAMES)
def test_an_answer_taller_than_the_window_shows_every_row_once(make: Make, text: str) -> None:
    """Report 126: repeated rows in the scroll-back with a live Markdown view."""
    stage = Stage(make(60, 24), 60, 24)
    stage.say(text)
    stage.view.end()
    assert list(map(spaced, stage.terminal.rows())) == list(map(spaced, expected(text, 59)))
    assert stage.terminal.cursor_shown


def test_two_hundred_lines_of_code_in_a_window_of_24() -> None:
    """Report 126, to the letter. Each line is printed when it ends; none waits for the end of the program."""
    stage = Stage(CuttingTerminal(80, 24), 80, 24)
    lines = [f"print({i})" for i in range(200)]
    stage.say("\n".join(["```python", *lines, "```"]), size=25)
    assert len(stage.terminal.rows()) > 195
    stage.view.end()
    assert stage.terminal.rows() == ["```python", *lines, "```"]


def squeezed(rows: list[str]) -> str:
    """The letters alone: where rows are broken, and how wide a table's lines are, depends on the width."""
    return re.sub(r"[\s─▌]", "", "".join(rows))


def with_resizes(stage: Stage, text: str, *widths: int) -> None:
    """Say a text in as many parts as there are widths, each width coming in the middle of a word."""
    size = len(text) // (len(widths) + 1)
    for number, columns in enumerate(widths):
        stage.say(text[number * size : (number + 1) * size])
        stage.resize(columns, 24 + number)
    stage.say(text[len(widths) * size :])
    stage.view.end()


@pytest.mark.parametrize("text", ALL, ids=NAMES)
@pytest.mark.parametrize("widths", [(80, 40), (40, 80), (80, 57, 80, 41)])
def test_a_resize_in_the_middle_repeats_and_loses_nothing(text: str, widths: tuple[int, ...]) -> None:
    """Report 127: 80 columns become 40 while an answer streams."""
    stage = Stage(WrappingTerminal(widths[0], 24), widths[0], 24)
    with_resizes(stage, text, *widths[1:])
    assert squeezed(stage.terminal.rows()) == squeezed(expected(text, 200))


@pytest.mark.parametrize("text", [POEM, PROGRAM], ids=NAMES[:2])
def test_a_resize_in_a_terminal_that_wraps_nothing_again(text: str) -> None:
    """The same where old rows stay as they are; these are narrow enough that none is cut."""
    stage = Stage(CuttingTerminal(80, 24), 80, 24)
    with_resizes(stage, text, 40, 80, 40)
    assert stage.terminal.rows() == expected(text, 200)


def test_wide_and_joined_characters_are_shown_once() -> None:
    """Report 127: CJK, flags and zero-width joiners."""
    lines = [f"{i}: 三行诗🇫🇷👨‍👩‍👧⚠️" + "漢字" * (i % 40) for i in range(100, 160)]
    stage = Stage(CuttingTerminal(50, 24), 50, 24)
    stage.say("\n\n".join(lines), size=5)
    stage.view.end()
    rows = "".join(stage.terminal.rows())
    assert rows == re.sub("[\u200d\ufe0f]", "", "".join(lines))


def test_only_a_third_of_the_window_is_ever_redrawn() -> None:
    """A row above it may be in the scroll-back after the window got narrower, where nothing can be taken back."""
    terminal = CuttingTerminal(40, 24)
    stage = Stage(terminal, 40, 24)
    for text in (TABLE, QUOTE, PARAGRAPH, PROGRAM):
        stage.say(text + "\n\n")
        below = [row for row in terminal.screen.display[terminal.screen.cursor.y :] if row.strip()]
        assert len(below) <= 8


def test_a_long_paragraph_can_be_read_from_its_beginning_while_it_grows() -> None:
    stage = Stage(CuttingTerminal(40, 24), 40, 24)
    stage.say(" ".join(WORDS[:60]))
    rows = stage.terminal.rows()
    assert " ".join(rows).split() == WORDS[:60]
    assert rows[0].startswith("word0 word1")


def test_a_mark_that_is_still_open_keeps_its_paragraph_together() -> None:
    """`**` may close at the end of a long paragraph: its beginning must not be printed as a literal mark."""
    text = "**" + " ".join(WORDS[:60]) + "** end"
    stage = Stage(CuttingTerminal(40, 24), 40, 24)
    stage.say(text)
    assert stage.terminal.rows()[0] == "..."
    stage.view.end()
    assert stage.terminal.rows() == expected(text, 39)
    assert "*" not in "".join(stage.terminal.rows())


def test_a_long_table_and_a_long_quotation_are_printed_while_they_grow() -> None:
    """A table of 200 rows must not wait for its last one; its columns stay where they were."""
    for text, number in ((TABLE, 28), (QUOTE, 37)):
        stage = Stage(CuttingTerminal(60, 24), 60, 24)
        stage.say(text)
        rows = stage.terminal.rows()
        assert len(rows) > number
        assert "..." not in rows
        stage.view.end()
        assert len({row.find(str(i * i), 2) for i, row in enumerate(stage.terminal.rows()[2:])}) == 1 or text is QUOTE


def test_a_later_cell_that_is_longer_than_its_column_is_folded() -> None:
    stage = Stage(CuttingTerminal(60, 24), 60, 24)
    stage.say(TABLE + "| 30 | " + "long " * 12 + "|\nprose is a row too\n\nEnd.")
    stage.view.end()
    rows = stage.terminal.rows()
    assert sum(row.count("long") for row in rows) == 12
    assert rows[-2:] == ["", "End."]
    assert "".join(rows).replace(" ", "").endswith("proseisarowtooEnd.")


def test_a_thought_is_live_and_then_one_row_with_its_time() -> None:
    stage = Stage(CuttingTerminal(20, 24), 20, 24)
    stage.say("Let me see.\n\nIt is two.\n", Channel.REASONING)
    assert stage.terminal.rows() == ["⠹ thinking", "│ Let me see.", "", "│ It is two."]
    stage.now_s += 3
    stage.say("\n\nTwo.\n")
    assert stage.terminal.rows() == ["thought for 3.2 s", "", "Two."]
    stage.view.end()
    assert stage.terminal.rows() == ["thought for 3.2 s", "", "Two."]
    assert stage.view.unfold()
    assert stage.terminal.rows()[3:] == ["│ Let me see.", "", "│ It is two."]


def test_a_thought_longer_than_the_window_shows_its_last_rows_and_leaves_nothing_behind() -> None:
    stage = Stage(WrappingTerminal(40, 24), 40, 24)
    for number in range(200):
        stage.say(f"thought {number}\n", Channel.REASONING)
        assert len(stage.terminal.rows()) <= 8
        if number == 100:
            stage.resize(30, 24)
    assert stage.terminal.rows()[-1] == "│ thought 199"
    stage.say("Two.")
    stage.view.end()
    assert len(stage.terminal.rows()) == 3


def test_a_hidden_thought_shows_that_there_is_one_and_how_long_it_takes() -> None:
    stage = Stage(CuttingTerminal(40, 24), 40, 24)
    stage.thinking = "hide"
    stage.say("Let me see.", Channel.REASONING)
    stage.now_s += 5
    stage.view.tick()
    assert stage.terminal.rows() == ["⠙ thinking, 5 s"]


def test_a_thought_that_is_stopped_says_so() -> None:
    stage = Stage(CuttingTerminal(40, 24), 40, 24)
    stage.say("Let me", Channel.REASONING)
    stage.view.end()
    assert stage.terminal.rows() == ["thought for 0.0 s, and was stopped"]


def test_what_is_typed_meanwhile_stands_below_at_once() -> None:
    """It is drawn without waiting for the next frame, and gone when the answer is over."""
    stage = Stage(CuttingTerminal(20, 24), 20, 24)
    stage.say("One")
    stage.typed = "next"
    stage.view.tick()
    assert stage.terminal.rows() == ["One", "> next"]
    stage.typed = "next, and the one after it\n"
    stage.view.tick()
    assert stage.terminal.rows() == ["One", "< he one after it⏎"]
    stage.say(" two.\n\nThree")
    assert stage.terminal.rows() == ["One two.", "", "Three", "< he one after it⏎"]
    stage.view.end()
    assert stage.terminal.rows() == ["One two.", "", "Three"]


def test_until_the_first_word_a_status_says_what_goes_on_and_then_is_gone() -> None:
    stage = Stage(CuttingTerminal(60, 24), 60, 24)
    seen = []
    for event in (Started("job", 2000), Prefilled("job", 512, 2000), Prefilled("job", 2000, 2000)):
        stage.now_s += 0.1
        stage.view.show(event)
        seen.append(stage.terminal.rows()[0][2:])
    assert seen == ["reading the prompt", "reading the prompt, 512 of 2,000 tokens", "thinking"]
    assert not stage.terminal.cursor_shown
    stage.say("Hi")
    assert stage.terminal.rows() == ["Hi"]
    stage.view.end()
    assert stage.terminal.rows() == ["Hi"]
    assert stage.terminal.cursor_shown


def test_an_answer_ended_before_its_first_word_leaves_nothing() -> None:
    stage = Stage(CuttingTerminal(60, 24), 60, 24)
    stage.view.tick()
    assert stage.terminal.rows() != []
    stage.view.end()
    assert stage.terminal.rows() == []


def test_each_answer_starts_anew() -> None:
    """Code of one answer left open is not the context of the next."""
    stage = Stage(CuttingTerminal(60, 24), 60, 24)
    stage.say("```python\nx = 1")
    stage.view.end()
    stage.view.begin()
    before = len(stage.out.log)
    stage.say("    import this")
    stage.view.end()
    assert stage.terminal.rows() == ["```python", "x = 1", "    import this"]
    assert "\x1b[9" not in stage.out.log[before:]


def test_what_did_not_change_is_not_written_again() -> None:
    """Report 127: flicker. A code line that is finished is not touched when the next ones come."""
    stage = Stage(CuttingTerminal(60, 24), 60, 24)
    stage.say("Hi")
    before = stage.out.log
    for _ in range(10):
        stage.now_s += 1
        stage.view.tick()
    assert stage.out.log == before
    stage.say(PROGRAM.removeprefix("Here:"), size=4)
    assert len(stage.out.log) < 20 * len(PROGRAM)
