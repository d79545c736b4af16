"""`reasoning_effort` as a switch and a budget.

Thread: any
"""

from __future__ import annotations

import pytest

from lattice_cli.prompt.thinking import EFFORTS, Thinking, thinking_of

pytestmark = pytest.mark.pure


def test_nothing_said_is_the_templates_default() -> None:
    assert thinking_of(None, switch=True) == Thinking()


def test_none_turns_thinking_off_with_or_without_a_switch() -> None:
    """User report 60: off must not be silently impossible."""
    assert thinking_of("none", switch=True) == Thinking(False, None)
    assert thinking_of("none", switch=False) == Thinking(False, 0)
    assert thinking_of(None, switch=False, enabled=False) == Thinking(False, 0)


def test_levels_are_budgets_that_grow() -> None:
    budgets = [thinking_of(effort, switch=True).budget_tokens for effort in EFFORTS if effort not in ("none", "max")]
    assert budgets == sorted(set(filter(None, budgets)))
    assert thinking_of("max", switch=True) == Thinking(True, None)
    assert thinking_of("low", switch=False) == Thinking(True, 1024)


def test_the_switch_of_a_request_wins_over_an_efforts() -> None:
    assert thinking_of("high", switch=True, enabled=False) == Thinking(False, None)
    assert thinking_of("none", switch=True, enabled=True) == Thinking(True, None)
