"""Percentiles, and whether two sets of figures differ, against numpy and scipy (0.4 s to import: slow).

Thread: any
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from lattice_cli.bench.stats import LEAST_PAIRS, Ratio, Spread, paired_ratio, percentile, rate, spread

pytestmark = pytest.mark.pure

SHARES = [0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1]
SAMPLE = [12.5, 3.1, 8.8, 40.2, 9.9, 10.0, 7.25, 11.1, 30.0, 8.0, 9.5]


def test_five_values_have_percentiles_and_range() -> None:
    found = spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert found == Spread(median=3.0, p5=1.2, p95=4.8, p99=4.96, low=1.0, high=5.0, count=5)


def test_one_value_is_its_own_spread() -> None:
    """Report 138: one repetition must be shown as one, not fail."""
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 1)


@pytest.mark.parametrize("share", SHARES)
def test_percentiles_are_those_of_numpy(share: float) -> None:
    expected = float(np.percentile(SAMPLE, 100 * share))
    assert percentile(sorted(SAMPLE), share) == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
def test_percentiles_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = [float(stats.scoreatpercentile(SAMPLE, 100 * share)) for share in SHARES]
    assert [percentile(sorted(SAMPLE), share) for share in SHARES] == pytest.approx(expected, abs=1e-12)


def test_missing_values_are_left_out_and_none_at_all_is_none() -> None:
    assert spread([None, 2.0, None]) == Spread(2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1)
    assert spread([None]) is None


@pytest.mark.parametrize(
    ("count", "seconds", "expected"), [(10, 2.0, 5.0), (0, 2.0, None), (-1, 2.0, None), (9, 0, None)]
)
def test_a_rate_without_things_or_time_is_none(count: int, seconds: float, expected: float | None) -> None:
    """A reply of one token has no decode rate; 0 or infinity would enter a median."""
    assert rate(count, seconds) == expected


def numpys(logs: list[float]) -> tuple[float, float]:
    means = np.random.default_rng(1).choice(logs, (20_000, len(logs))).mean(axis=1)  # (resamples,)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def scipys(logs: list[float]) -> tuple[float, float]:
    stats = pytest.importorskip("scipy.stats")
    found = stats.bootstrap((logs,), np.mean, method="percentile", n_resamples=20_000, rng=1).confidence_interval
    return float(found.low), float(found.high)


@pytest.mark.parametrize("interval", [numpys, pytest.param(scipys, marks=pytest.mark.slow)])
def test_a_bootstrap_interval_is_numpys_and_scipys(interval: Callable[[list[float]], tuple[float, float]]) -> None:
    """All are percentiles of resampled means of the logarithms; 20,000 resamples agree within a hundredth of them."""
    draw = random.Random(3)
    ours = [10 + draw.random() for _ in range(20)]
    theirs = [9.6 + draw.random() for _ in range(20)]
    logs = [math.log(one / other) for one, other in zip(ours, theirs, strict=True)]
    found = paired_ratio(ours, theirs, resamples=20_000)
    assert found is not None
    assert found.ratio == pytest.approx(math.exp(np.mean(logs)))
    assert (math.log(found.low), math.log(found.high)) == pytest.approx(interval(logs), abs=0.001)
    assert found == paired_ratio(ours, theirs, resamples=20_000)  # the seed is fixed


def test_a_ratio_tells_only_when_its_interval_leaves_one_out_and_the_pairs_are_enough() -> None:
    """Five pairs that all agree say it by chance once in sixteen times."""
    assert Ratio(1.1, 1.01, 1.2, LEAST_PAIRS).tells
    assert Ratio(0.9, 0.8, 0.99, LEAST_PAIRS).tells
    assert not Ratio(1.1, 0.99, 1.2, 50).tells
    assert not Ratio(1.1, 1.01, 1.2, LEAST_PAIRS - 1).tells
    assert paired_ratio([], []) is None


def test_what_slows_both_of_a_pair_does_not_widen_the_interval() -> None:
    """A machine that is half as fast for a while: the ratio is exactly 1.1 all the same."""
    slow = [1.0, 2.0, 1.0, 3.0, 1.0, 2.0]
    found = paired_ratio([1.1 * factor for factor in slow], slow)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((1.1, 1.1))
