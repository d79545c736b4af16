"""How many random cases a test tries: all in `make test-all`, a sample where the slow tests are left out.

Thread: any
"""

from __future__ import annotations

from hypothesis import settings

full = True  # conftest says so before a test's file is read


def seeds(all_of_them: int, sample: int) -> range:
    """The seeds of so many tests."""
    return range(all_of_them if full else sample)


def examples(all_of_them: int, sample: int) -> settings:
    """Hypothesis' settings for so many examples."""
    return settings(max_examples=all_of_them if full else sample, deadline=None)
