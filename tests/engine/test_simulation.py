"""Whole schedules, each from a seed: see simulation.py for what is played and what must hold.

Thread: any
"""

from __future__ import annotations

import pytest

from tests.engine.simulation import simulate

pytestmark = pytest.mark.pure

IN_TEST, IN_ALL, BATCH = 100, 10_400, 400


def test_schedules_of_arrivals_cancels_faults_slow_readers_deadlines_and_ends() -> None:
    """Reports 78, 96 and 99: whatever comes together, each request ends once, and as it would alone."""
    for seed in range(IN_TEST):
        simulate(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(IN_TEST, IN_TEST + IN_ALL, BATCH))
def test_many_more_schedules(first: int) -> None:
    for seed in range(first, first + BATCH):
        simulate(seed)
