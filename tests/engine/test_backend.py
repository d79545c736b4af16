"""MlxBackend on a tiny model: rows alone and in company, cancelled, poisoned, started again.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from lattice_cli.engine.engine import Engine
from lattice_cli.engine.mlx_backend import MlxBackend
from lattice_cli.events import Event, Failed, Finished, Piece, Prefilled
from lattice_cli.job import Channel, Job, Limits, Prompt, Sampling
from lattice_cli.kernels.state import DecoderState
from lattice_cli.model.card import ModelCard, ModelFormat
from lattice_cli.model.network import make_caches
from lattice_cli.model.upstream import file_limit_kept
from lattice_cli.settings import EngineSettings
from tests.engine.fake import text_of
from tests.engine.letters import LetterTokenizer
from tests.tiny import write_tiny_folder

pytestmark = pytest.mark.tiny

CARD = ModelCard("tiny", ModelFormat("hf", "llama", "none", 512, 0), LetterTokenizer(), 512, frozenset())


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with file_limit_kept():
        from mlx_lm.utils import load_model
    model, _ = load_model(write_tiny_folder(tmp_path_factory.mktemp("tiny") / request.param, request.param))
    return model


class Poisoned:
    """A network that faults whenever the token 99 reaches it."""

    def __init__(self, network: Any) -> None:
        self._network = network

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        if bool((inputs == 99).any()):
            raise RuntimeError("poison")
        return self._network(inputs, cache=cache)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


def job(name: str, ids: range | tuple[int, ...], sampling: Sampling, max_tokens: int = 10) -> Job:
    return Job(name, Prompt(tuple(ids), ""), sampling, Limits(max_tokens))


R = Channel.REASONING
GREEDY = Sampling(temperature=0.0)
JOBS = (
    job("greedy", range(40), GREEDY),
    job("drawn", range(10, 60), Sampling(0.9, 20, 0.9, seed=7)),
    job("penalised", range(5), Sampling(1.0, 0, 1.0, 0.05, 1.3, 0.4, 0.2, seed=4)),
    job("long", range(30, 95), Sampling(0.7, seed=5)),
)


def run(network: Any, *jobs: Job, chunk: int = 32, card: ModelCard = CARD) -> list[Event]:
    engine = Engine(card, MlxBackend(network, 8, chunk), EngineSettings())
    for each in jobs:
        engine.add(each)
    events: list[Event] = []
    for _ in range(500):
        if engine.idle:
            break
        try:
            events += engine.step()
        except RuntimeError as fault:
            events += engine.reset(fault)
    engine.close()
    return events


def test_company_does_not_change_a_row_and_neither_does_the_chunk(network: Any) -> None:
    """Report 100: replies of a hybrid model must not take over another request's context."""
    alone = {each.id: text_of(run(network, each), each.id) for each in JOBS}
    for chunk in (7, 32, 512):
        together = run(network, *JOBS, chunk=chunk)
        assert {each.id: text_of(together, each.id) for each in JOBS} == alone
    assert len(set(alone.values())) == len(JOBS)


def test_a_fault_in_one_row_costs_the_others_not_a_token(network: Any) -> None:
    """mlx-lm's generator goes on with silently wrong tokens after a fault (mlx-lm 0.32)."""
    alone = {each.id: text_of(run(network, each), each.id) for each in JOBS}
    events = run(Poisoned(network), *JOBS[:2], job("bad", (1, 2, 99, 3), GREEDY), *JOBS[2:])
    assert [event.job_id for event in events if isinstance(event, Failed)] == ["bad"]
    assert {each.id: text_of(events, each.id) for each in JOBS} == alone


def ends_in_a_step(network: Any) -> bool:
    """Whether the end of a prompt is read in the pass that makes its first token."""
    cache = make_caches(network)[0]
    return isinstance(cache, DecoderState) and cache.joins


def test_a_prompt_is_read_in_chunks_and_every_chunk_is_told(network: Any) -> None:
    events = run(network, job("a", range(70), GREEDY, max_tokens=2), chunk=32)
    done = [event.done for event in events if isinstance(event, Prefilled)]
    assert done == ([32, 64, 70] if ends_in_a_step(network) else [32, 64, 69, 70])


def test_a_prompt_of_one_token_is_a_prompt(network: Any) -> None:
    (end,) = [event for event in run(network, job("a", (5,), GREEDY, max_tokens=3)) if isinstance(event, Finished)]
    assert (end.reason, end.usage.prompt_tokens, end.usage.completion_tokens) == ("length", 1, 3)


@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_cancelling_in_prefill_or_decode_leaves_the_others_exact(network: Any, steps: int) -> None:
    alone = text_of(run(network, JOBS[1]), "drawn")
    engine = Engine(CARD, MlxBackend(network, 8, 16), EngineSettings())
    engine.add(job("gone", range(60), GREEDY, max_tokens=100))
    engine.add(JOBS[1])
    events: list[Event] = []
    for _ in range(steps):
        events += engine.step()
    assert [type(event) for event in engine.cancel("gone")] == [Finished]
    while not engine.idle:
        events += engine.step()
    engine.close()
    assert text_of(events, "drawn") == alone


def test_rows_come_and_go_while_others_run(network: Any) -> None:
    alone = {each.id: text_of(run(network, each), each.id) for each in JOBS}
    engine = Engine(CARD, MlxBackend(network, 2, 16), EngineSettings(max_rows=2))
    events: list[Event] = []
    for each in JOBS:
        engine.add(each)
        for _ in range(3):
            events += engine.step()
    while not engine.idle:
        events += engine.step()
    engine.close()
    assert {each.id: text_of(events, each.id) for each in JOBS} == alone


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_budget_forces_its_marker_in_time_and_leaves_the_neighbours_exact(network: Any, tokens: int) -> None:
    """The generator is one step ahead: asked for after the token came out, a forced token is too late."""
    limits = Limits(12, reasoning_tokens=tokens)
    card = replace(CARD, think=("<t>", "</t>"))
    forced = Job("forced", Prompt(tuple(range(20)), "", opens_in=Channel.REASONING), GREEDY, limits)
    alone = {each.id: text_of(run(network, each), each.id) for each in JOBS}
    free = run(network, job("free", range(20), GREEDY, max_tokens=tokens))
    events = run(network, *JOBS[:2], forced, *JOBS[2:], card=card)
    thought = "".join(e.text for e in events if isinstance(e, Piece) and e.job_id == "forced" and e.channel is R)
    assert thought == text_of(free, "free").rstrip("\r\n")
    (end,) = [event for event in events if isinstance(event, Finished) and event.job_id == "forced"]
    assert end.usage.completion_tokens == 12
    assert {each.id: text_of(events, each.id) for each in JOBS} == alone
