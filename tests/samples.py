"""How many random cases a test tries: all in `make test-all`, a sample where the slow tests are left out.

Thread: any
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, settings

full = True  # conftest says so before a test's file is read


def seeds(all_of_them: int, sample: int) -> range:
    """The seeds of so many tests."""
    return range(all_of_them if full else sample)


def examples(all_of_them: int, sample: int, unchecked: Sequence[HealthCheck] = ()) -> settings:
    """Hypothesis' settings for so many examples, without some of its checks of health."""
    return settings(max_examples=all_of_them if full else sample, deadline=None, suppress_health_check=tuple(unchecked))
