"""The engine as a partner: what job becomes of a question.

Thread: any
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.chat.manner import Manner
from lattice_cli.chat.partner import Question
from lattice_cli.chat.session import Session
from lattice_cli.errors import InvalidField
from lattice_cli.job import Channel, SamplingChoice
from lattice_cli.model.card import ModelCard
from tests.chat.desk import Desk, bot_card, partner

pytestmark = pytest.mark.pure
SWITCHED = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}{% endif %}"
)


@pytest.fixture
def card(tmp_path: Path) -> ModelCard:
    return bot_card(tmp_path, context_tokens=100)


def asked(card: ModelCard, max_tokens: int | None = None, **fields: Any) -> Desk:
    desk = Desk()
    question = Question(
        fields.pop("turns", Session().asked("Hi").conversation), fields.pop("manner", Manner()), **fields
    )
    partner(desk, card).ask(question, max_tokens)
    return desk


def test_sampling_takes_what_was_chosen_then_the_models_advice_then_what_is_built_in(card: ModelCard) -> None:
    advised = replace(card, sampling=SamplingChoice(temperature=0.2, top_k=5))
    sampling = asked(advised, manner=Manner().having(temperature=0.0, seed=7)).job.sampling
    values = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.repetition_penalty, sampling.seed)
    assert values == (0.0, 5, 0.9, 1.0, 7)


@pytest.mark.parametrize(("most", "given"), [(None, 47), (10, 10)])
def test_an_answer_may_have_what_fits_or_what_is_asked_for(card: ModelCard, most: int | None, given: int) -> None:
    assert asked(card, most).job.limits.max_tokens == given


def test_every_setting_reaches_the_job(card: ModelCard) -> None:
    """No setting that changes the answer is passed over in silence."""
    manner = Manner().having(
        top_p=0.5, min_p=0.1, presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.3, logit_bias={"7": -100},
        stop=["END", "\n"], stop_token_ids=[3], min_tokens=2, ignore_eos=True, include_stop_str_in_output=True,
        reasoning_budget=9,
    )  # fmt: skip
    job = asked(card, 20, manner=manner).job
    drawn, limits = job.sampling, job.limits
    assert (drawn.top_p, drawn.min_p, drawn.presence_penalty, drawn.frequency_penalty) == (0.5, 0.1, 1, -1)
    assert (drawn.repetition_penalty, drawn.logit_bias) == (1.3, ((7, -100),))
    assert (limits.stop, limits.stop_ids, limits.min_tokens) == (("END", "\n"), frozenset({3}), 2)
    assert (limits.ignore_end, limits.keep_stop, limits.reasoning_tokens) == (True, True, 9)


@pytest.mark.parametrize("fields", [{"logit_bias": {"99999": 1}}, {"stop_token_ids": [99999]}])
def test_an_id_that_the_vocabulary_lacks_is_refused(card: ModelCard, fields: dict[str, Any]) -> None:
    """On a CPU it would end the process."""
    with pytest.raises(InvalidField, match=r"names the token 99999, and there are 257"):
        asked(card, manner=Manner().having(**fields))


def test_thoughts_are_switched_off_by_the_template_where_it_can(tmp_path: Path) -> None:
    card = bot_card(tmp_path, chat_template=SWITCHED, think=["<think>", "</think>"])
    on, off = asked(card).job, asked(card, thinks=False).job
    assert (on.prompt.opens_in, on.limits.reasoning_tokens) == (Channel.REASONING, None)
    assert (off.prompt.opens_in, off.limits.reasoning_tokens) == (Channel.ANSWER, None)
    assert off.prompt.text.endswith("assistant:<think></think>")


def test_thoughts_are_closed_at_once_where_the_template_has_no_switch(tmp_path: Path) -> None:
    card = bot_card(tmp_path, think=["<think>", "</think>"])
    assert asked(card, thinks=False).job.limits.reasoning_tokens == 1


def test_an_answer_goes_on_where_it_was_cut(card: ModelCard) -> None:
    turns = Session().asked("Hi").answered("Hello th").open_conversation
    job = asked(card, 5, turns=turns, continues=True).job
    assert job.prompt.text.endswith("<|im_start|>assistant\nHello th")


def test_a_thought_that_was_cut_goes_on_as_a_thought(tmp_path: Path) -> None:
    card = bot_card(tmp_path, think=["<think>", "</think>"])
    turns = Session().asked("Hi").answered("", "Let me").open_conversation
    job = asked(card, 5, turns=turns, continues=True).job
    assert job.prompt.text.endswith("<think>Let me")
    assert job.prompt.opens_in is Channel.REASONING


def test_a_schema_binds_the_answer_after_its_thoughts(tmp_path: Path) -> None:
    schema = json.dumps({"type": "object"})
    plain = asked(bot_card(tmp_path), 5, schema=schema).job.constraint
    thinking = asked(bot_card(tmp_path, think=["<think>", "</think>"]), 5, schema=schema).job.constraint
    assert plain is not None and thinking is not None
    assert (plain.kind, plain.text, plain.opens_after) == ("json_schema", schema, "")
    assert thinking.opens_after == "</think>"


def test_a_schema_that_cannot_be_enforced_is_refused(card: ModelCard) -> None:
    with pytest.raises(InvalidField, match="schema"):
        asked(card, 5, schema='{"type": "nonsense"}')
