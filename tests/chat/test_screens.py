"""Whole screens of `lattice chat`, as text after each step. The golden ones were reviewed by eye.

What a script decides stands still (it hangs there), so a screen can be compared to the letter; the spinner and the
times are put to the same sign first.

Thread: any
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lattice_cli.chat.markdown_blocks import Markdown
from lattice_cli.chat.view import Painter
from tests.chat.terminal import Talk, script

pytestmark = pytest.mark.wire

THINK = ["<think>", "</think>"]


def tokens(text: str, size: int = 7) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def part(number: int) -> str:
    """About twenty lines with everything in them."""
    table = "".join(f"| {number}-{row} | {'ab' * (row % 6)} | 漢字{row} |\n" for row in range(14))
    code = "".join(f"value_{number}_{row} = {row}  # and so on\n" for row in range(10))
    return (
        f"## Part {number}\n\nA **bold** beginning of part {number} that is longer than one row of the terminal, "
        f"so that it is wrapped, with `code{number}` in it.\n\n"
        f"- item {number}.1\n- item {number}.2\n  - inner {number} 😀\n\n"
        f"| id | letters | 漢字 |\n|---|---|---:|\n{table}\n```python\n{code}```\n\n"
        f"> said {number}\n> and on {number}\n\n"
    )


BIG = "".join(map(part, range(6))) + "The end."


def painted(text: str, width: int) -> list[str]:
    """The rows of an answer painted at once."""
    painter = Painter(Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None))
    painter.fancy = True
    splitter = Markdown()
    blocks = splitter.push(text) + splitter.close()
    return ["".join(s.text for s in row).rstrip() for block in blocks for row in painter.finish(block, width)]


def spaced(rows: list[str]) -> list[str]:
    """A table printed in parts leaves its columns room for what may come, and a rule is as long as they are."""
    return [re.sub("─+", "─", re.sub(" {2,}", " ", row.strip())) for row in rows]


def test_an_answer_of_200_lines_with_tables_and_code_is_shown_once_and_never_jumps(tmp_path: Path) -> None:
    """Report 126, with the real command: scroll-back and screen are the whole answer; and at every moment on the way
    all rows but the live ones are the beginning of what stands there in the end.
    """
    assert len(painted(BIG, 79)) > 200
    model = script(tmp_path, {"tokens": tokens(BIG), "token_ms": 1}, context_tokens=9000)
    with Talk(tmp_path / "home", "--model", model, columns=80, rows=24) as talk:
        talk.line("Go")
        moments: list[list[str]] = []

        def done() -> bool:
            rows = talk.rows()
            if not moments or rows != moments[-1]:
                moments.append(rows)
            return "prompt tokens, " in "\n".join(rows)

        talk.until(done, "end of the answer")
        talk.at_prompt()
        final = talk.rows()
    start = final.index("> Go") + 1
    end = next(at for at, row in enumerate(final) if "prompt tokens, " in row)
    assert spaced(final[start:end]) == spaced(painted(BIG, 79))
    assert len(moments) > 8
    live = 24 // 3
    for rows in moments:
        settled = rows[: max(0, len(rows) - live - 1)]
        assert settled == final[: len(settled)]


@pytest.mark.parametrize("widths", [(80, 60, 100), (60, 40)])
def test_resizes_in_the_middle_of_an_answer_repeat_and_lose_nothing(tmp_path: Path, widths: tuple[int, ...]) -> None:
    """Report 127, with the real command and SIGWINCH. Lines are short: the emulator cuts longer ones, as xterm does."""
    lines = [f"{'- ' if number % 3 else ''}line {number} **is** short" for number in range(120)]
    reply = {"tokens": tokens("\n\n".join(lines)), "token_ms": 2}
    model = script(tmp_path, reply, context_tokens=9000)
    with Talk(tmp_path / "home", "--model", model, "--quiet", columns=widths[0], rows=24) as talk:
        talk.line("Go")
        for number, columns in enumerate(widths[1:]):
            talk.sees(f"line {30 * number + 20} ")
            talk.resize(columns, 24 + number)
        talk.sees("line 119 is short")
        talk.at_prompt()
        shown = [int(found[1]) for row in talk.rows() if (found := re.search(r"line (\d+) is short", row))]
    assert shown == list(range(120))


def still(talk: Talk) -> str:
    """The screen, with the spinner and all times put to one sign."""
    text = "\n".join(row.rstrip() for row in talk.terminal.screen.display).rstrip()
    text = re.sub("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", "*", text)
    text = re.sub(r"[\d,.]+ tok/s", "N tok/s", text)
    return re.sub(r"\b[\d.]+ s\b", "N s", text)


HALF = """\
# Two ways

Python has **two** ways to sort:

1. `sorted(items)`
2. `items.sort()`

| way | new list |
|---|---|
| `sorted` | yes |
| `sort` | n"""

REPLIES: tuple[dict[str, Any], ...] = (
    {"when": "prefill", "tokens": ["never"], "prefill_ms": 600_000},
    {"when": "thought", "tokens": ["<think>", *tokens("Let me see.\nThere are two ways.\n")], "then": "hang"},
    {"when": "half", "tokens": ["<think>", "Hm.", "</think>", *tokens(HALF)], "then": "hang"},
    {"when": "file", "tokens": ["I see it."]},
    {"tokens": ["Hello ", "**there**", "."]},
)

PREFILL = """\
bot: 4,000 tokens of context. /help lists the commands, Ctrl-D leaves

> prefill
* reading the prompt, N s"""

THOUGHT = """\
> thought
* thinking
│ Let me see.
│ There are two ways."""

ANSWER = """\
> half
thought for N s

Two ways

Python has two ways to sort:

1. sorted(items)
2. items.sort()

way      new list
─────────────────
sorted   yes
sort     n"""

AHEAD = (
    ANSWER
    + """
> and then?"""
)

STOPPED = (
    ANSWER
    + """
stopped, 54 prompt tokens, 24 tokens, N tok/s, first token after N s

>"""
)

MENU = """\
> /s
     /system [TEXT]     set the system prompt; alone: show it; -: none
     /set [NAME VALUE]  how answers are made; alone: show it; -: as it was
     /save [NAME]       save the conversation under a name
     /sessions          what is saved
     /stats             what this conversation has cost so far"""


def test_golden_screens(tmp_path: Path) -> None:
    """Prefill, a thought, an answer on its way with a half-typed message below it, the answer stopped, the menu."""
    model = script(tmp_path, *REPLIES, think=THINK, context_tokens=4000)
    with Talk(tmp_path / "home", "--model", model, "--seed", "1", columns=80, rows=24) as talk:
        talk.line("prefill")
        talk.until(lambda: still(talk) == PREFILL, "screen while the prompt is read")
        talk.send("\x03")
        talk.sees("there was no answer")
        talk.line("thought")
        talk.until(lambda: still(talk).replace(", N s", "").endswith(THOUGHT), "screen of a thought")
        talk.send("\x03")
        talk.sees("/continue goes on with it")
        talk.line("/reset")
        talk.line("half")
        talk.until(lambda: still(talk).endswith(ANSWER), "screen of an answer on its way")
        talk.send("and then?")
        talk.until(lambda: still(talk).endswith(AHEAD), "screen with a half-typed message")
        talk.send("\x03")
        talk.until(lambda: still(talk).endswith(STOPPED), "screen of a stopped answer")
        talk.at_prompt()
        talk.send("/s")
        talk.until(lambda: still(talk).endswith(MENU), "menu")
