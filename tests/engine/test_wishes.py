"""Rows that wish for more than text (scores, bias, token limits, grammars, n choices) on a tiny model, beside rows
that do not.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from lattice_cli.engine.batch import masked
from lattice_cli.engine.engine import Engine
from lattice_cli.engine.mlx_backend import MlxBackend
from lattice_cli.engine.sampling import row_processors
from lattice_cli.errors import EngineFault, InvalidField
from lattice_cli.events import Event, Failed, Finished, Piece, Prefilled, Started, TokenScore
from lattice_cli.job import Channel, Constraint, Job, Limits, Prompt, Sampling
from lattice_cli.model.card import ModelCard, ModelFormat
from lattice_cli.model.tokenizer import FastTokenizer
from lattice_cli.settings import EngineSettings
from tests.engine import test_backend
from tests.engine.fake import text_of
from tests.engine.test_backend import JOBS, Poisoned
from tests.tiny import END_OF_TEXT, IM_END, VOCABULARY, tiny_tokenizer

pytestmark = pytest.mark.tiny

network = test_backend.network
GREEDY = Sampling(temperature=0.0)
CARD = ModelCard(
    "tiny",
    ModelFormat("hf", "llama", "none", 512, 0),
    FastTokenizer(tiny_tokenizer()),
    512,
    frozenset({IM_END, END_OF_TEXT}),
    think=("<think>", "</think>"),
)
LONG = replace(JOBS[1], id="long drawn", limits=Limits(60))
PERSON = Constraint(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}},
            "required": ["name", "ok"],
            "additionalProperties": False,
        }
    ),
)


def job(name: str, sampling: Sampling = GREEDY, max_tokens: int = 10, **more: Any) -> Job:
    return Job(name, Prompt(tuple(range(40)), ""), sampling, Limits(max_tokens), **more)


def run(network: Any, *jobs: Job, rows: int = 8, chunk: int = 32, together: Sequence[Job] = ()) -> list[Event]:
    engine = Engine(CARD, MlxBackend(network, rows, chunk), EngineSettings(max_rows=rows))
    for each in jobs:
        engine.add(each)
    engine.add(*together)
    events: list[Event] = []
    for _ in range(900):
        if engine.idle:
            break
        try:
            events += engine.step()
        except RuntimeError as fault:
            events += engine.reset(fault)
    engine.close()
    return events


def end_of(events: Sequence[Event], name: str) -> Finished:
    (end,) = [event for event in events if isinstance(event, Finished) and event.job_id == name]
    return end


def scores_of(events: Sequence[Event], name: str) -> list[TokenScore]:
    return [score for event in events if isinstance(event, Piece) and event.job_id == name for score in event.scores]


# Scores.


@pytest.mark.parametrize("top", [0, 1, 20])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8, 20, 0.9, 0.05, 1.3, 0.4, 0.2, 5)])
def test_scores_are_the_log_softmax_of_raw_logits_of_a_direct_pass(network: Any, top: int, sampling: Sampling) -> None:
    """mlx-lm's own figures are taken after penalties and bias. Checked for each token, in company of other wishes."""
    letters_only = tuple((token_id, -100.0) for token_id in range(256, VOCABULARY))
    mine = job("mine", replace(sampling, logit_bias=((65, 4.0), *letters_only)), logprobs=top)
    others = [job("other", logprobs=3), *JOBS, job("held", constraint=PERSON, logprobs=None)]
    events = run(network, *others[:2], mine, *others[2:])
    scores = scores_of(events, "mine")
    assert len(scores) == 10
    fed = [*mine.prompt.ids, *(score.token_id for score in scores)]
    logits = network(mx.array([fed]))[0].astype(mx.float32)
    expected = (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).tolist()[len(mine.prompt.ids) - 1 :]
    for place, score in zip(expected, scores, strict=False):
        assert score.logprob == pytest.approx(place[score.token_id], abs=2e-3)
        assert len(score.top) == top
        assert [value for _, value in score.top] == pytest.approx(sorted(place, reverse=True)[:top], abs=2e-3)
    assert b"".join(score.data for score in scores).decode("utf-8", "replace") == text_of(events, "mine")
    assert all(len(score.top) == 3 for score in scores_of(events, "other"))
    assert scores_of(events, "drawn") == []


# Bias and token limits.


def test_a_bias_forces_and_forbids_a_token_of_its_row_alone(network: Any) -> None:
    forced = job("forced", replace(GREEDY, logit_bias=((97, 100.0),)))
    first = ord(text_of(run(network, job("free")), "free")[0])
    banned = job("banned", replace(GREEDY, logit_bias=((first, -100.0),)))
    events = run(network, forced, *JOBS, banned)
    assert text_of(events, "forced") == "a" * 10
    assert not text_of(events, "banned").startswith(chr(first))
    assert {each.id: text_of(events, each.id) for each in JOBS} == alone(network)


@pytest.mark.parametrize("strange", [VOCABULARY, 151_935, 2**31 - 1, -1])
def test_ids_beyond_the_logits_change_nothing(strange: int) -> None:
    """mlx-lm's server dies with SIGSEGV of a logit_bias outside the vocabulary; a tokenizer may have more ids than
    a model has logits.
    """
    asked = job("j", replace(GREEDY, logit_bias=((strange, 5.0), (3, 1.0))))
    asked = replace(asked, limits=Limits(9, min_tokens=5))
    bias, no_end = row_processors(asked, end_ids=frozenset({strange, 2}))
    logits = mx.zeros((1, VOCABULARY))
    out = no_end(mx.array(list(range(40))), bias(mx.array(list(range(40))), logits)).tolist()[0]
    assert [index for index, value in enumerate(out) if value] == [2, 3]
    assert (out[2], out[3]) == (-float("inf"), 1.0)


def test_no_end_before_min_tokens_and_ends_can_be_ignored(network: Any) -> None:
    at_once = replace(GREEDY, logit_bias=((IM_END, 50.0), (100, 40.0)))
    short = job("short", at_once)
    later = replace(job("later", at_once), limits=Limits(20, min_tokens=3))
    never = replace(job("never", at_once), limits=Limits(7, ignore_end=True))
    own = replace(job("own", at_once), limits=Limits(20, min_tokens=2, stop_ids=frozenset({100}), ignore_end=True))
    events = run(network, short, *JOBS, later, never, own)
    ends = {name: end_of(events, name) for name in ("short", "later", "never", "own")}
    assert {name: end.reason for name, end in ends.items()} == {
        "short": "stop",
        "later": "stop",
        "never": "length",
        "own": "length",
    }
    assert ends["short"].usage.completion_tokens == 0
    assert text_of(events, "later") == "ddd"
    assert (ends["never"].usage.completion_tokens, text_of(events, "never")) == (7, "")


# Grammars.


def alone(network: Any) -> dict[str, str]:
    return {each.id: text_of(run(network, each), each.id) for each in JOBS}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_held_row_gives_what_its_schema_says_and_free_rows_stay_exact(network: Any, seed: int) -> None:
    held = [
        job("greedy held", max_tokens=200, constraint=PERSON),
        job("drawn held", Sampling(1.0, 0, 1.0, seed=seed), 200, constraint=PERSON),
        job("penalised held", Sampling(1.0, 30, 0.95, 0.0, 1.2, 0.1, 0.1, seed), 200, constraint=PERSON, logprobs=2),
        job("choice", max_tokens=50, constraint=Constraint("choice", '["maybe","perhaps"]')),
    ]
    free = [*JOBS, LONG]
    events = run(network, *free[:2], *held, *free[2:], rows=12)
    for each in held[:3]:
        end = end_of(events, each.id)
        value = json.loads(text_of(events, each.id))
        assert end.reason == "stop" and set(value) == {"name", "ok"} and isinstance(value["ok"], bool)
        assert text_of(events, each.id) == text_of(run(network, each), each.id)
    assert text_of(events, "choice") in ("maybe", "perhaps")
    assert {each.id: text_of(events, each.id) for each in free} == {
        **alone(network),
        LONG.id: text_of(run(network, LONG), LONG.id),
    }


def test_a_held_row_that_is_cut_says_length(network: Any) -> None:
    events = run(network, job("cut", max_tokens=5, constraint=PERSON))
    assert (end_of(events, "cut").reason, len(text_of(events, "cut"))) == ("length", 5)


def test_min_tokens_and_ignored_ends_do_not_keep_a_fulfilled_grammar_from_ending(network: Any) -> None:
    limits = Limits(20, min_tokens=10, ignore_end=True)
    events = run(network, replace(job("yes", constraint=Constraint("choice", '["yes"]')), limits=limits))
    assert (end_of(events, "yes").reason, text_of(events, "yes")) == ("stop", "yes")


@pytest.mark.parametrize("opens_in", list(Channel))
def test_a_budget_closes_the_thought_and_then_the_grammar_counts(network: Any, opens_in: Channel) -> None:
    """Report 59: where a budget forced the end of a thought, the marker or the thought broke the schema."""
    after = replace(PERSON, opens_after="</think>")
    opened = replace(GREEDY, logit_bias=((259, 100.0),)) if opens_in is Channel.ANSWER else GREEDY
    thoughtful = Job(
        "thoughtful",
        Prompt(tuple(range(40)), "", opens_in),
        opened,
        Limits(300, reasoning_tokens=6),
        constraint=after,
        logprobs=0,
    )
    events = run(network, *JOBS, thoughtful)
    value = json.loads(
        text_of([e for e in events if isinstance(e, Piece) and e.channel is Channel.ANSWER], "thoughtful")
    )
    assert set(value) == {"name", "ok"}
    end = end_of(events, "thoughtful")
    assert end.reason == "stop"
    assert 6 < end.usage.reasoning_tokens <= 9  # the marker, and at most two line breaks after it
    assert {each.id: text_of(events, each.id) for each in JOBS} == alone(network)


def test_without_a_thought_the_grammar_counts_from_the_start(network: Any) -> None:
    no_marker = replace(GREEDY, logit_bias=((259, -100.0), (60, -100.0)))
    events = run(network, job("plain", no_marker, 200, constraint=replace(PERSON, opens_after="</think>")))
    assert set(json.loads(text_of(events, "plain"))) == {"name", "ok"}


def test_a_fault_of_a_neighbour_costs_a_held_row_nothing(network: Any) -> None:
    """The matcher starts over with the tokens that were said."""
    held = job("held", Sampling(1.0, 0, 1.0, seed=4), 200, constraint=PERSON, logprobs=1)
    bad = Job("bad", Prompt((*range(70), 99, 3), ""), GREEDY, Limits(5))
    events = run(Poisoned(network), held, bad, chunk=8)
    assert [event.job_id for event in events if isinstance(event, Failed)] == ["bad"]
    undisturbed = run(network, held, chunk=8)
    assert text_of(events, "held") == text_of(undisturbed, "held")
    ids = [[score.token_id for score in scores_of(each, "held")] for each in (events, undisturbed)]
    assert ids[0] == ids[1]


def test_a_model_whose_logits_lack_what_a_grammar_needs_fails_closed(network: Any) -> None:
    """A tokenizer may have tokens that the model cannot say. Nothing invented comes out, and neighbours go on."""

    class Narrow:
        def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
            return network(inputs, cache=cache)[..., :100]

        def __getattr__(self, name: str) -> Any:
            return getattr(network, name)

    events = run(Narrow(), job("held", constraint=Constraint("choice", '["az"]')), job("free"))
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.job_id == "held" and isinstance(failed.error, EngineFault) and failed.error.status == 500
    assert text_of(events, "held") == "a"
    assert end_of(events, "free").reason == "length"


def test_a_constraint_that_nobody_checked_fails_its_row_alone(network: Any) -> None:
    events = run(network, job("bad", constraint=Constraint("regex", "(")), job("free"))
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.job_id == "bad" and isinstance(failed.error, InvalidField)
    assert end_of(events, "free").reason == "length"


def test_a_mask_fits_logits_of_any_width_and_leaves_free_rows_as_they_are() -> None:
    """A padded vocabulary has logits for ids that the tokenizer lacks."""
    logits = mx.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    none = -float("inf")
    assert masked(logits, [np.array([False, True]), None]).tolist() == [[none, 2.0, none], [4.0, 5.0, 6.0]]
    assert masked(logits[:, :1], [None, np.array([True, True])]).tolist() == [[1.0], [4.0]]
    assert masked(logits, [None, None]) is logits


# Choices of one prompt.


class Counted:
    """A network that counts the prompt tokens it reads."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.prompt_tokens = 0

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        if inputs.shape[1] > 1:
            self.prompt_tokens += inputs.size
        return self._network(inputs, cache=cache)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


def choices(count: int, length: int = 61, max_tokens: int = 12) -> list[Job]:
    prompt = Prompt(tuple(range(length)), "")
    sampling = Sampling(1.0, 0, 1.0, seed=9)
    return [Job(f"c{number}", prompt, sampling, Limits(max_tokens), choice=number) for number in range(count)]


def apart(network: Any, jobs: Sequence[Job]) -> dict[str, str]:
    return {each.id: text_of(run(network, each), each.id) for each in jobs}


@pytest.mark.parametrize(("count", "rows"), [(2, 8), (5, 8), (7, 3), (4, 1)])
@pytest.mark.parametrize("length", [1, pytest.param(2, marks=pytest.mark.slow), 61])
def test_choices_read_their_prompt_once_in_waves_too(network: Any, count: int, rows: int, length: int) -> None:
    jobs = choices(count, length)
    counted = Counted(network)
    events = run(counted, *JOBS[:1], rows=rows, together=jobs, chunk=16)
    padding = 16  # where a chunk is of two rows
    assert counted.prompt_tokens <= (len(JOBS[0].prompt.ids) - 1) + (length - 1) + padding
    texts = {each.id: text_of(events, each.id) for each in jobs}
    assert texts == apart(network, jobs)
    assert len(set(texts.values())) == count
    for each in jobs:
        mine = [event for event in events if event.job_id == each.id]
        assert isinstance(mine[0], Started) and mine[0].prompt_tokens == length
        done = [event.done for event in mine if isinstance(event, Prefilled)]
        assert done == sorted(done) and done[-1] == length
        assert end_of(events, each.id).usage.prompt_tokens == length


@pytest.mark.parametrize("gone", [0, 1, 3])
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 9])
def test_a_choice_that_is_cancelled_leaves_the_others_exact(network: Any, gone: int, steps: int) -> None:
    jobs = choices(4)
    engine = Engine(CARD, MlxBackend(network, 3, 16), EngineSettings(max_rows=3))
    engine.add(*jobs)
    events: list[Event] = []
    for _ in range(steps):
        events += engine.step()
    events += engine.cancel(f"c{gone}")
    while not engine.idle:
        events += engine.step()
    engine.close()
    left = [each for each in jobs if each.choice != gone]
    assert {each.id: text_of(events, each.id) for each in left} == apart(network, left)
    assert end_of(events, f"c{gone}").reason == "cancelled"


def test_all_choices_can_be_cancelled_while_their_prompt_is_read(network: Any) -> None:
    engine = Engine(CARD, MlxBackend(network, 8, 16), EngineSettings())
    engine.add(*choices(3))
    engine.step()
    engine.step()
    for number in range(3):
        engine.cancel(f"c{number}")
    assert engine.idle and engine.ready_in_s() is None
    again = choices(2)
    engine.add(*again)
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
    assert {each.id: text_of(events, each.id) for each in again} == apart(network, again)


@pytest.mark.parametrize("fault", [2, 6, 9, 22])
@pytest.mark.parametrize("rows", [2, 8])
def test_a_fault_leaves_the_choices_exact(network: Any, rows: int, fault: int) -> None:
    """Rows start over with what they said; those still waiting get the prompt's cache anew."""
    jobs = choices(5)

    class Faulty(Counted):
        calls = 0

        def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
            Faulty.calls += 1
            if Faulty.calls == fault:
                raise RuntimeError("fault that no row owns")
            return super().__call__(inputs, cache)

    events = run(Faulty(network), together=jobs, rows=rows, chunk=16)
    assert not [event for event in events if isinstance(event, Failed)]
    assert {each.id: text_of(events, each.id) for each in jobs} == apart(network, jobs)


def test_a_prompt_that_cannot_be_read_fails_each_of_its_choices_and_nobody_else(network: Any) -> None:
    prompt = Prompt((1, 2, 99, 3), "")
    bad = [Job(f"bad{number}", prompt, GREEDY, Limits(4), choice=number) for number in range(3)]
    events = run(Poisoned(network), *JOBS, together=bad)
    assert {event.job_id for event in events if isinstance(event, Failed)} == {"bad0", "bad1", "bad2"}
    assert {each.id: text_of(events, each.id) for each in JOBS} == alone(network)


def test_choices_may_have_wishes_of_their_own(network: Any) -> None:
    plain, held, scored = choices(3, max_tokens=200)
    held, scored = replace(held, constraint=PERSON), replace(scored, logprobs=2, limits=Limits(5))
    events = run(network, together=[replace(plain, limits=Limits(20)), held, scored])
    assert set(json.loads(text_of(events, held.id))) == {"name", "ok"}
    assert len(scores_of(events, scored.id)) == 5
    assert text_of(events, held.id) == text_of(run(network, held), held.id)
