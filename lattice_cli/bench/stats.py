"""The middle of a few measurements and how far they lie apart.

Knows numbers; knows no units.

Thread: any
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, quartiles and range of `count` values. With one value all five are that value."""

    median: float
    q1: float
    q3: float
    low: float
    high: float
    count: int


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of the values that are there; None where there are none.

    Quartiles are interpolated between the values themselves (the inclusive method), so they never
    leave the measured range.
    """
    there = sorted(value for value in values if value is not None)
    if not there:
        return None
    if len(there) == 1:
        return Spread(there[0], there[0], there[0], there[0], there[0], 1)
    q1, median, q3 = statistics.quantiles(there, n=4, method="inclusive")
    return Spread(median, q1, q3, there[0], there[-1], len(there))


def rate(count: int, seconds: float) -> float | None:
    """Things per second; None where there is nothing to divide (no things, or no time between them)."""
    return count / seconds if count > 0 and seconds > 0 else None
