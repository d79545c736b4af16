"""A trial of `bench speed`: what the times of its rows say. Knows times; measures nothing.

Thread: any
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from lattice_cli.bench.noise import UNWATCHED, Noise
from lattice_cli.bench.stats import rate
from lattice_cli.engine.measure_trial import RowTimes


@dataclass(frozen=True, slots=True)
class Trial:
    """All rows of one go at a point. Seconds run from the moment all of them were asked for; `joules` are of all of
    it, prompts too.
    """

    rows: tuple[RowTimes, ...]
    noise: Noise = UNWATCHED
    joules: float | None = None

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens read, cached ones left out, per second until the last prompt was read."""
        read = sum(row.prompt_tokens - row.cached_tokens for row in self.rows)
        return rate(read, max(row.read_s for row in self.rows))

    @property
    def decode_rate(self) -> float | None:
        """Tokens of all rows per second while all of them decode: after the last row's first token, up to the end of
        the row that ends first. None when there was no such time.
        """
        start_s, end_s = self.together_s
        return rate(sum(start_s < now_s <= end_s for row in self.rows for now_s in row.tokens_s), end_s - start_s)

    @property
    def together_s(self) -> tuple[float, float]:
        """From when to when all rows decode; the end is not after the beginning where they never do."""
        return max(row.tokens_s[0] for row in self.rows), min(row.tokens_s[-1] for row in self.rows)

    @property
    def steps(self) -> int:
        """While all rows decode."""
        start_s, end_s = self.together_s
        return sum(start_s < now_s <= end_s for now_s in self.rows[0].tokens_s)

    @property
    def host_step_s(self) -> float | None:
        """What the host needs to build and submit a step of all rows: the median, of one row's tokens."""
        start_s, end_s = self.together_s
        row = self.rows[0]
        told = zip(row.tokens_s, row.submits_s, strict=False)
        found = [submit_s for now_s, submit_s in told if start_s < now_s <= end_s and submit_s is not None]
        return statistics.median(found) if found else None

    @property
    def first_token_s(self) -> float:
        """Of the row that waited longest."""
        return max(row.tokens_s[0] for row in self.rows)

    @property
    def cached_tokens(self) -> int:
        return sum(row.cached_tokens for row in self.rows)

    @property
    def token_joules(self) -> float | None:
        return None if self.joules is None else self.joules / sum(row.completion_tokens for row in self.rows)
