"""The middle of a few measurements, how far they lie apart, and whether two sets of them differ.

Knows numbers; knows no units.

Thread: any
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RESAMPLES = 5000
CONFIDENCE = 0.95
LEAST_PAIRS = 6  # with n equal pairs a bootstrap sees no spread: chance alone gives n of one sign with 2 ** (1 - n)


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles and range of `count` values. With one value all are that value."""

    median: float
    p5: float
    p95: float
    p99: float
    low: float
    high: float
    count: int


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of the values that are there; None where there are none."""
    there = sorted(value for value in values if value is not None)
    if not there:
        return None
    median, p5, p95, p99 = (percentile(there, share) for share in (0.5, 0.05, 0.95, 0.99))
    return Spread(median, p5, p95, p99, there[0], there[-1], len(there))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Interpolated between the values themselves (numpy's and scipy's default), so it never leaves their range."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def rate(count: float, seconds: float) -> float | None:
    """Things per second; None where there is nothing to divide (no things, or no time between them)."""
    return count / seconds if count > 0 and seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Ratio:
    """The geometric mean of paired ratios, and the interval that holds it with 95% confidence. `pairs` is how many."""

    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def tells(self) -> bool:
        """Whether a word may be said: enough pairs, and an interval that does not hold 1."""
        return self.pairs >= LEAST_PAIRS and not self.low <= 1 <= self.high


def paired_ratio(
    ours: Sequence[float], theirs: Sequence[float], seed: int = 0, resamples: int = RESAMPLES
) -> Ratio | None:
    """`ours` over `theirs`, pair by pair, with a bootstrap interval over the pairs; None without pairs.

    Pairs are measured next to each other, so what slows the machine for a while slows both. The interval is of
    percentiles of resampled means; the same seed gives the same interval.
    """
    logs = [math.log(one / other) for one, other in zip(ours, theirs, strict=True) if one > 0 and other > 0]
    if not logs:
        return None
    draw = random.Random(seed)
    means = sorted(math.fsum(draw.choices(logs, k=len(logs))) / len(logs) for _ in range(resamples))
    tail = (1 - CONFIDENCE) / 2
    low, high = percentile(means, tail), percentile(means, 1 - tail)
    return Ratio(math.exp(math.fsum(logs) / len(logs)), math.exp(low), math.exp(high), len(logs))
