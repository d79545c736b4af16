"""How long a reply may be, by the rule of each policy.

Thread: any
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lattice_cli.errors import PromptTooLong, UnsupportedField, UsageError
from lattice_cli.job import Limits
from lattice_cli.policy import LATTICE_050, LATTICE_061, OPENAI, Policy
from lattice_cli.serve.limits import Window, check_budget, limits_of
from lattice_cli.serve.settings import ServeSettings
from lattice_cli.serve.wire import Ask
from tests.engine.letters import LETTERS

pytestmark = pytest.mark.pure


def limits(policy: Policy, context: int, prompt: int, *, thinks: bool = True, **fields: Any) -> Limits:
    named = {name: fields.pop(name) for name in ("max_tokens", "reasoning_budget") if name in fields}
    settings = ServeSettings(policy=policy, **{name.removeprefix("flag_"): value for name, value in fields.items()})
    return limits_of(Ask(turns=(), **named), settings, Window(context, prompt, thinks))


def refusal(*arguments: Any, **fields: Any) -> str:
    with pytest.raises(PromptTooLong) as refused:
        limits(*arguments, **fields)
    return refused.value.sentence()


def thoughts(budget: int, answer: int, most: int | None = None) -> Limits:
    return Limits(most or budget + answer + 1, reasoning_tokens=budget, answer_tokens=answer)


# 0.6.1


def test_061_clamps_to_the_window_alone() -> None:
    """build_cfg_clamps_to_runtime_context"""
    told = refusal(LATTICE_061, 8, 1, reasoning_budget=50, flag_max_tokens=100, flag_reasoning_budget=50)
    assert "needs 7 generated tokens plus 1 (total 9)" in told
    told = refusal(LATTICE_061, 8, 1, max_tokens=5, reasoning_budget=50)
    assert "needs 7 generated tokens plus 1 (total 9)" in told


def test_061_refuses_when_prompt_and_answer_overflow() -> None:
    """check_prompt_fits_window_rejects_when_prompt_plus_decode_overflows"""
    assert refusal(LATTICE_061, 8, 2, max_tokens=7) == (
        "prompt has 2 tokens, leaving 6 of the 8-token context window for generation, but this request needs 7 "
        "generated tokens plus 1 (total 10); reduce max_tokens/reasoning_budget or shorten the prompt"
    )
    assert "prompt has 9 tokens, leaving 0 of the 8-token" in refusal(LATTICE_061, 8, 9, max_tokens=1)
    assert "(total 4098)" in refusal(LATTICE_061, 4096, 2, max_tokens=999_999)


def test_061_takes_the_exact_boundary_whole() -> None:
    """check_prompt_fits_window_accepts_exact_boundary_no_needless_truncation"""
    assert "(total 9)" in refusal(LATTICE_061, 8, 1, max_tokens=6, reasoning_budget=1)
    assert limits(LATTICE_061, 9, 1, max_tokens=6, reasoning_budget=1) == thoughts(1, 6)
    assert limits(LATTICE_061, 9, 2, max_tokens=6) == Limits(6)
    assert "(total 10)" in refusal(LATTICE_061, 9, 3, max_tokens=6)


def test_061_takes_an_ordinary_request_as_it_is() -> None:
    """check_prompt_fits_window_accepts_ordinary_prompt_unclamped"""
    assert limits(LATTICE_061, 4096, 100, max_tokens=50) == Limits(50)
    assert limits(LATTICE_061, 4096, 100) == Limits(512)
    assert limits(LATTICE_061, 4096, 100, flag_max_tokens=7) == Limits(7)


@pytest.mark.parametrize("policy", [LATTICE_061, LATTICE_050], ids=lambda policy: policy.name)
def test_a_budget_of_0_is_the_servers(policy: Policy) -> None:
    assert limits(policy, 99, 1, max_tokens=5, reasoning_budget=0) == Limits(5)
    assert limits(policy, 99, 1, max_tokens=5, reasoning_budget=0, flag_reasoning_budget=9) == thoughts(9, 5)
    assert limits(policy, 99, 1, max_tokens=5, flag_reasoning_budget=9) == thoughts(9, 5)
    assert limits(policy, 99, 1, max_tokens=5, reasoning_budget=2, flag_reasoning_budget=9) == thoughts(2, 5)


@pytest.mark.parametrize("policy", [LATTICE_061, LATTICE_050], ids=lambda policy: policy.name)
def test_a_budget_is_idle_where_a_model_has_no_marker(policy: Policy) -> None:
    assert limits(policy, 99, 1, thinks=False, max_tokens=5, reasoning_budget=2) == Limits(5)


# 0.5.0


def test_050_clamps_to_4096_and_then_to_the_room_left() -> None:
    assert limits(LATTICE_050, 9000, 1, max_tokens=999_999) == Limits(4096)
    assert limits(LATTICE_050, 9000, 1, max_tokens=1, reasoning_budget=2**60) == thoughts(4096, 1)
    assert limits(LATTICE_050, 100, 60, max_tokens=999_999) == Limits(39)
    assert limits(LATTICE_050, 100, 60, max_tokens=20, reasoning_budget=30) == thoughts(30, 20, most=39)
    assert limits(LATTICE_050, 100, 60) == Limits(39)


def test_050_refuses_only_a_prompt_that_leaves_no_room() -> None:
    assert limits(LATTICE_050, 100, 98, max_tokens=5) == Limits(1)
    told = "prompt has 99 tokens, which leaves no room for an answer in the 100-token context window"
    assert refusal(LATTICE_050, 100, 99, max_tokens=5) == told


def test_050_may_be_asked_for_nothing() -> None:
    assert limits(LATTICE_050, 100, 1, max_tokens=0) == Limits(0)
    assert limits(LATTICE_050, 100, 1, max_tokens=0, reasoning_budget=3) == thoughts(3, 0)


# OpenAI


def test_openai_bounds_everything_by_max_tokens() -> None:
    assert limits(OPENAI, 100, 60, max_tokens=39, reasoning_budget=5) == Limits(39, reasoning_tokens=5)
    assert limits(OPENAI, 100, 60) == Limits(39)
    assert limits(OPENAI, 100, 60, flag_max_tokens=50) == Limits(39)
    assert "max_tokens (40)" in refusal(OPENAI, 100, 60, max_tokens=40)


def test_openai_takes_a_budget_of_0_for_none() -> None:
    assert limits(OPENAI, 100, 60, max_tokens=3, reasoning_budget=0, flag_reasoning_budget=9) == Limits(3)
    assert limits(OPENAI, 100, 60, max_tokens=3, flag_reasoning_budget=9) == Limits(3, reasoning_tokens=9)


def test_openai_refuses_a_budget_that_nothing_can_keep() -> None:
    """A model without markers would think on in the answer, past any budget."""
    with pytest.raises(UnsupportedField) as refused:
        limits(OPENAI, 100, 60, thinks=False, reasoning_budget=5)
    assert (refused.value.code, refused.value.param) == ("unsupported_feature", "reasoning_budget")
    assert limits(OPENAI, 100, 60, thinks=False, max_tokens=3, reasoning_budget=0) == Limits(3)


def test_a_flag_that_nothing_can_keep_is_told_at_the_start() -> None:
    mute, thinker = replace(LETTERS, think=None), replace(LETTERS, think=("<t>", "</t>"))
    with pytest.raises(UsageError, match=r"`--reasoning-budget` needs a model that marks its thoughts"):
        check_budget(ServeSettings(reasoning_budget=5), mute)
    for card, settings in (
        (thinker, ServeSettings(reasoning_budget=5)),
        (mute, ServeSettings()),
        (mute, ServeSettings(reasoning_budget=5, policy=LATTICE_061)),
    ):
        check_budget(settings, card)
