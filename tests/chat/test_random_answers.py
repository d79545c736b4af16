"""Random Markdown, in random pieces, through windows of changing widths: nothing repeated, nothing lost.

What it found: a table that took the quotation below it for rows, so that marks which close later were printed as such.

Thread: any
"""

from __future__ import annotations

import random
import re

import pytest

from tests.chat.emulator import CuttingTerminal, WrappingTerminal
from tests.chat.test_live import Stage, expected, squeezed

WORDS = (
    *("alpha", "beta", "gamma", "**bold**", "`code`", "*em*", "~~no~~", "[link](http://a.b/c)", "snake_case", "2 * 3"),
    *("a|b", "<int>", "x" * 30, "_u_", "**open", "`tick", "end**", "tick`", "!", "(paren)", "https://example.org/a_b"),
)
SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 200))]


def words(draw: random.Random, most: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, most)))


def lines(draw: random.Random, start: str, most_words: int, most_lines: int) -> str:
    return "\n".join(start + words(draw, most_words) for _ in range(draw.randint(1, most_lines)))


def table(draw: random.Random) -> str:
    columns = draw.randint(1, 4)
    rows = [[words(draw, 4).replace("|", "/") for _ in range(columns)] for _ in range(draw.randint(1, 30))]
    head, *body = [f"|{'|'.join(row)}|" for row in rows]
    return "\n".join([head, "|" + "---|" * columns, *body])


def block(draw: random.Random) -> str:
    match draw.randrange(10):
        case 0:
            return "#" * draw.randint(1, 4) + " " + words(draw, 6)
        case 1:
            return words(draw, 120)
        case 2:
            return lines(draw, "", 9, 30)
        case 3:
            marks = ("- ", "  - ", "1. ", "10) ")
            return "\n".join(draw.choice(marks) + words(draw, 60) for _ in range(draw.randint(1, 12)))
        case 4:
            return f"```{draw.choice(['', 'python', 'sh'])}\n{lines(draw, '', 8, 30)}\n```"
        case 5 | 6:
            return table(draw)
        case 7:
            return lines(draw, "> ", 12, 30)
        case 8:
            return f"- item\n  goes on\n\n  more of it {words(draw, 50)}\n  ```\n  code\n  ```"
        case _:
            return "|no table\n|nor this\n\n---\n\n    code by indent"


def answer(draw: random.Random) -> str:
    between = draw.choice(["\n\n", "\n\n", "\n\n", "\n"])
    return between.join(block(draw) for _ in range(draw.randint(1, 6)))


def letters(rows: list[str]) -> list[str]:
    """Sorted: cells of a table that are folded at other places have their letters in another order."""
    return sorted(re.sub(r"[\s─▌]", "", "".join(rows)))


@pytest.mark.wire
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_answer_is_shown_once(seed: int) -> None:
    """Report 126."""
    draw = random.Random(seed)
    text, columns = answer(draw), draw.choice([40, 60, 80])
    stage = Stage(CuttingTerminal(columns, 24), columns, 24)
    stage.say(text, size=draw.choice([7, 17, 50]))
    stage.view.end()
    assert letters(stage.terminal.rows()) == letters(expected(text, columns - 1))


@pytest.mark.wire
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_answer_in_a_window_that_changes_is_shown_once(seed: int) -> None:
    """Report 127."""
    draw = random.Random(seed)
    text, columns = answer(draw), draw.choice([40, 60, 80])
    stage = Stage(WrappingTerminal(columns, 24), columns, 24)
    while text:
        size = draw.randint(20, 400)
        stage.say(text[:size], size=draw.choice([5, 17]))
        text = text[size:]
        if draw.random() < 0.5:
            stage.resize(draw.choice([40, 57, 80, 100]), draw.choice([20, 24, 30]))
    stage.view.end()
    draw = random.Random(seed)
    assert sorted(squeezed(stage.terminal.rows())) == sorted(squeezed(expected(answer(draw), 200)))
