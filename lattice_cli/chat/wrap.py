"""Where a line of text may be broken to fit a width, in scripts with and without spaces.

Knows characters and cells; knows no styles. Chinese and Japanese break between any two characters, but
no row begins with a closing mark or ends with an opening one.

Thread: any
"""

from __future__ import annotations

from prompt_toolkit.utils import get_cwidth

NEVER_FIRST = frozenset("、。，．：；？！）〕］｝〉》」』】’”ー々…·,.:;?!)]}%")
NEVER_LAST = frozenset("（〔［｛〈《「『【‘“([{")
JOINER = "\u200d"


def cells(text: str) -> int:
    """The most cells any terminal gives a text: every code point by itself, flags and selectors as two.

    Terminals disagree about joined emoji, flags and variation selectors; a row that is to be redrawn
    must be one row in all of them.
    """
    return sum(2 if _disputed(char) else max(0, get_cwidth(char)) for char in text)


def breaks(text: str, width: int) -> list[int]:
    """The offsets at which `text`, a single line, goes on in a new row of at most `width` cells.

    Spaces at the end of a row may stand beyond it. A word wider than a row is broken anywhere.
    """
    starts: list[int] = []
    start = place = used = 0
    for i, char in enumerate(text):
        if i > start and _may_break(text[i - 1], char):
            place = i
        size = cells(char)
        if used + size > width and char != " " and i > start:
            start = place if place > start else i
            starts.append(start)
            used = cells(text[start:i])
        used += size
    return starts


def _may_break(before: str, after: str) -> bool:
    if before == " " or after == " ":
        return before == " " and after != " "
    if after in NEVER_FIRST or before in NEVER_LAST or JOINER in (before, after) or _disputed(after):
        return False
    return get_cwidth(before) == 2 or get_cwidth(after) == 2


def _disputed(char: str) -> bool:
    return char == "\ufe0f" or "\U0001f1e6" <= char <= "\U0001f1ff" or "\U0001f3fb" <= char <= "\U0001f3ff"
