"""Median and spread.

Thread: any
"""

from __future__ import annotations

import pytest

from lattice_cli.bench.stats import Spread, rate, spread

pytestmark = pytest.mark.pure


def test_five_values_have_median_quartiles_and_range() -> None:
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(median=3.0, q1=2.0, q3=4.0, low=1.0, high=5.0, count=5)


def test_one_value_is_its_own_spread() -> None:
    """Report 138: one repetition must be shown as one, not fail."""
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0, 7.0, 7.0, 1)


def test_quartiles_of_two_values_stay_between_them() -> None:
    assert spread([1.0, 2.0]) == Spread(median=1.5, q1=1.25, q3=1.75, low=1.0, high=2.0, count=2)


def test_missing_values_are_left_out_and_none_at_all_is_none() -> None:
    assert spread([None, 2.0, None]) == Spread(2.0, 2.0, 2.0, 2.0, 2.0, 1)
    assert spread([None]) is None


@pytest.mark.parametrize(
    ("count", "seconds", "expected"), [(10, 2.0, 5.0), (0, 2.0, None), (-1, 2.0, None), (9, 0, None)]
)
def test_a_rate_without_things_or_time_is_none(count: int, seconds: float, expected: float | None) -> None:
    """A reply of one token has no decode rate; 0 or infinity would enter a median."""
    assert rate(count, seconds) == expected
