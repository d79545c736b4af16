"""How answers are made: what `/set` and the command's flags say, in the names and ranges of the server.

Knows texts and values; knows no model.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass

from lattice_cli.job import SamplingChoice


@dataclass(frozen=True, slots=True)
class Manner:
    """How answers are made. `max_tokens` is the most an answer may have; None: what fits."""

    sampling: SamplingChoice = SamplingChoice()
    max_tokens: int | None = None
    quiet: bool = False
