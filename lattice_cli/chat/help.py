"""The table that `/help` shows.

Thread: any
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from lattice_cli.chat.repl import COMMANDS, KEYS

NARROWEST = 20  # cells of the right side; below that it stands under the left one


def help_lines(width: int) -> list[str]:
    """The commands and keys in rows of `width` cells."""
    rows = [(" ".join(filter(None, (", ".join(c.names), c.argument))), c.help) for c in COMMANDS]
    return aligned([*rows, ("", ""), *KEYS], width)


def aligned(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Names on the left, what there is to say of them on the right, wrapped on its own side."""
    indent = max((len(left) for left, _ in rows), default=0) + 2
    if width - indent < NARROWEST:
        return [line for left, right in rows for line in (left, *_wrapped(right, width - 4, 4))]
    lines = []
    for left, right in rows:
        first, *more = _wrapped(right, width - indent, indent) or [""]
        lines += [f"{left:<{indent}}{first.strip()}".rstrip(), *more]
    return lines


def _wrapped(text: str, width: int, indent: int) -> list[str]:
    parts = textwrap.wrap(text, max(width, NARROWEST), break_long_words=False, break_on_hyphens=False)
    return [" " * indent + part for part in parts]
