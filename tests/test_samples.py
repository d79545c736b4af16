"""A run with the slow tests has full counts, and one without them has samples.

Thread: any
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import conftest, samples

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("chosen", "all_of_them"),
    [
        ("", True),
        ("slow", True),
        ("pure and slow", True),
        ("not slow", False),
        ("pure and not slow", False),
        (conftest.PURE, False),
    ],
)
def test_full_counts_are_for_runs_with_the_slow_tests(chosen: str, all_of_them: bool) -> None:
    assert conftest.has_slow_tests(chosen) is all_of_them


def test_so_many_examples_are_tried(request: pytest.FixtureRequest) -> None:
    tried: list[int] = []

    @samples.examples(50, sample=10)
    @given(st.integers())
    def tries(number: int) -> None:
        tried.append(number)

    tries()
    assert len(tried) == (50 if conftest.has_slow_tests(request.config.option.markexpr) else 10)
