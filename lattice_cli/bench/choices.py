"""Options that the measuring commands share, and how their lists are read.

Thread: any
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from lattice_cli.errors import UsageError

MOST = 1 << 20

TokensOption = Annotated[
    int, typer.Option("--tokens", "--max-tokens", min=2, metavar="N", help="Length of the reply, in tokens")
]
WarmupsOption = Annotated[int, typer.Option(min=0, help="Trials that run first and are left out")]
JsonOption = Annotated[bool, typer.Option("--json", help="Tables to stderr, one line of JSON to stdout")]
SaveOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the JSON there as well")]
WaitOption = Annotated[
    float, typer.Option(min=0, metavar="S", help="Before each trial wait up to S seconds for a quiet machine")
]
NoisyOption = Annotated[
    float, typer.Option(min=0, max=1, help="Mark trials in which others used more than this share of the cores")
]


def counts(text: str, option: str) -> tuple[int, ...]:
    """`1,2,4` as numbers above 0, each once, in their order. Raises: UsageError."""
    found: list[int] = []
    for word in text.split(","):
        word = word.strip()
        if not (word.isascii() and word.isdecimal() and len(word) < 8 and 0 < int(word) <= MOST):
            raise UsageError(
                f"`{option}` is `{text}`, and must be numbers above 0 with commas between",
                param=option,
                hint="as 1,2,4",
            )
        if int(word) not in found:
            found.append(int(word))
    return tuple(found)


def names(text: str, known: Sequence[str], option: str) -> tuple[str, ...]:
    """`a,b` as names of `known`, each once. Raises: UsageError."""
    found = [word.strip() for word in text.split(",")]
    for word in found:
        if word not in known:
            raise UsageError(f"`{option}` knows no `{word}`", param=option, hint=f"there are {', '.join(known)}")
    return tuple(dict.fromkeys(found))
