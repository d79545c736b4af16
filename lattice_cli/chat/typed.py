"""What comes from the keyboard: a text, and which of it was pasted.

Thread: any
"""

from __future__ import annotations

import re
from dataclasses import dataclass

QUOTES = '"""'
OPENS = re.compile(r'(?:/[A-Za-z]+\s+)?"""')


@dataclass(frozen=True, slots=True)
class Typed:
    """`pasted`: it begins with a pasted text of several lines, so it is a message, whatever it begins with. `plain`
    are the `@words` that came with a paste: they name no file.
    """

    text: str
    pasted: bool = False
    plain: frozenset[str] = frozenset()


def block_open(text: str) -> bool:
    """Whether it begins a block of three quotation marks that is not closed yet."""
    return OPENS.match(text) is not None and text.count(QUOTES) == 1


def unquoted(text: str) -> str | None:
    """What stands in a block of three quotation marks; None where the text is no such block."""
    text = text.strip()
    if len(text) >= 2 * len(QUOTES) and text.startswith(QUOTES) and text.endswith(QUOTES) and text.count(QUOTES) == 2:
        return text[len(QUOTES) : -len(QUOTES)].strip("\n")
    return None
