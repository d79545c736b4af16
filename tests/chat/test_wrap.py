"""Where rows are broken.

Thread: any
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from lattice_cli.chat.wrap import breaks, cells

pytestmark = pytest.mark.pure


def rows(text: str, width: int) -> list[str]:
    starts = [0, *breaks(text, width), len(text)]
    return [text[a:b].rstrip() for a, b in pairwise(starts)]


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("one two three", 9, ["one two", "three"]),
        ("one two", 7, ["one two"]),
        ("one     two", 5, ["one", "two"]),
        ("abcdefghij kl", 4, ["abcd", "efgh", "ij", "kl"]),
        ("Python 是一种语言", 10, ["Python 是", "一种语言"]),
        ("一二三。四", 6, ["一二", "三。四"]),
        ("一二「三」四", 6, ["一二", "「三」", "四"]),
        ("ab👨\u200d👩\u200d👧", 6, ["ab", "👨\u200d👩\u200d👧"]),
        ("", 5, [""]),
    ],
)
def test_rows_fit_and_break_where_the_script_allows(text: str, width: int, expected: list[str]) -> None:
    """Chinese text broken only at its few spaces leaves half-empty rows."""
    assert rows(text, width) == expected


def test_no_letter_is_lost_and_no_row_is_too_wide() -> None:
    text = "Some words, 三行诗 mixed（和）🇫🇷🇯🇵 flags and averyveryverylongword. " * 5
    for width in range(2, 60):
        broken = rows(text, width)
        assert "".join("".join(broken).split()) == "".join(text.split())
        assert max(map(cells, broken)) <= width
