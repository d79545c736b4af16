"""What rows are reckoned to take on real networks, against what they take; and a machine without memory.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from lattice_cli.engine.engine import Engine
from lattice_cli.engine.memory import Memory
from lattice_cli.engine.memory_cost import cost_of, open_memory
from lattice_cli.engine.mlx_backend import MlxBackend
from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.engine.prefix_states import keeper_of
from lattice_cli.errors import EngineFault, UsageError
from lattice_cli.events import Event, Failed, Finished
from lattice_cli.job import Job, Limits, Prompt, Sampling
from lattice_cli.model.network import make_caches
from lattice_cli.settings import EngineSettings
from tests.engine import test_backend, test_backend_kernels
from tests.engine.fake import text_of
from tests.engine.test_backend import CARD, GREEDY, JOBS, job, run

pytestmark = [pytest.mark.tiny, pytest.mark.timeout(300)]

stock, fused = test_backend.network, test_backend_kernels.network


@pytest.fixture(autouse=True)
def cache_limit_kept() -> Iterator[None]:
    """mlx's store of freed buffers belongs to the whole process."""
    before = mx.set_cache_limit(1 << 30)
    yield
    mx.set_cache_limit(before)


def held(network: Any, tokens: int) -> int:
    """Bytes of a row's caches after so many tokens."""
    caches = make_caches(network)
    mx.eval(network(mx.array([[5] * tokens]), cache=caches), [cache.state for cache in caches])
    return sum(int(cache.nbytes) for cache in caches)


@pytest.mark.parametrize("tokens", [1, 100, 300])
def test_a_rows_bytes_are_known_before_it_runs(stock: Any, tokens: int) -> None:
    cost = cost_of(stock)
    assert cost.padded
    assert cost.of(tokens) == held(stock, tokens)


@pytest.mark.parametrize("tokens", [1, 100, 300])
def test_a_rows_pages_are_known_before_it_runs(fused: Any, tokens: int) -> None:
    cost = cost_of(fused)
    assert not cost.padded
    assert cost.of(tokens) == held(fused, tokens)


def opened(network: Any, limit: int, budget: int = 0) -> tuple[Engine, PrefixCache]:
    prefix = PrefixCache(keeper_of(make_caches(network)), budget)
    memory, card = open_memory(network, CARD, 0, EngineSettings(memory_bytes=limit), prefix)
    return Engine(card, MlxBackend(network, 8, 32, prefix=prefix), EngineSettings(), memory=memory), prefix


def finish(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while not engine.idle:
        try:
            events += engine.step()
        except (RuntimeError, MemoryError) as fault:
            events += engine.reset(fault)
    return events


def test_rows_wait_for_memory_and_say_what_they_would_have_said(fused: Any) -> None:
    alone = {each.id: text_of(run(fused, each), each.id) for each in JOBS}
    cost = cost_of(fused)
    engine, prefix = opened(fused, 2 * cost.of(75), budget=1 << 24)
    events: list[Event] = []
    for each in JOBS:
        engine.add(each)
    peak = 0
    while not engine.idle:
        events += engine.step()
        peak = max(peak, len(engine._scheduler.running))
    assert peak == 2
    assert {each.id: text_of(events, each.id) for each in JOBS} == alone
    assert prefix.stats.bytes <= 2 * cost.of(75)
    engine.close()


def test_rows_that_others_outgrow_say_what_they_would_have_said(fused: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Drawn ones, too, and choices of one prompt, which may be back before or after their prompt was read again."""
    prompt = Prompt(tuple(range(20)), "")
    jobs = [replace(each, limits=Limits(80, ignore_end=True)) for each in JOBS]
    jobs += [Job(f"c{at}", prompt, Sampling(0.8, seed=3), Limits(80, ignore_end=True), choice=at) for at in range(3)]
    alone = {each.id: text_of(run(fused, each), each.id) for each in jobs}
    cost, prefix = cost_of(fused), PrefixCache(keeper_of(make_caches(fused)), 1 << 24)
    stats, release = lambda: prefix.stats.bytes, prefix.release
    memory = Memory(cost, 5 * cost.of(128) + cost.of(200), 512, stats, release, growth_tokens=8)
    engine = Engine(CARD, MlxBackend(fused, 8, 32, prefix=prefix), EngineSettings(), memory=memory)
    for each in jobs[:4]:
        engine.add(each)
    engine.add(*jobs[4:])
    with caplog.at_level(logging.INFO, "lattice.engine"):
        events = finish(engine)
    assert "others need its memory" in caplog.text
    assert {each.id: text_of(events, each.id) for each in jobs} == alone
    engine.close()


def test_a_window_that_no_memory_holds_is_lowered_and_told(stock: Any) -> None:
    cost = cost_of(stock)
    settings = EngineSettings(memory_bytes=cost.batch((256,)))
    _, card = open_memory(stock, replace(CARD, context_tokens=100_000), 0, settings, PrefixCache())
    assert card.context_tokens == 256
    assert "the context window is 256 tokens instead of 100000" in card.notes[-1]


def test_a_limit_below_any_reply_is_a_sentence_at_the_start(stock: Any) -> None:
    with pytest.raises(UsageError, match="of memory for replies, and one of 64 tokens takes"):
        open_memory(stock, CARD, 0, EngineSettings(memory_bytes=1000), PrefixCache())


def test_freed_buffers_are_bounded(stock: Any) -> None:
    """Report 103: each new prompt length cost buffer memory that never returned."""
    open_memory(stock, CARD, 0, EngineSettings(memory_bytes=1 << 30), PrefixCache())
    assert mx.set_cache_limit(1 << 20) == 1 << 27


class Hungry:
    """A network that finds no memory whenever the token 99 reaches it.

    UPSTREAM: mlx 0.32 raises on a GPU only; on a Linux CPU an allocation that fails ends the process.
    """

    def __init__(self, network: Any, error: Exception) -> None:
        self._network = network
        self._error = error

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        if bool((inputs == 99).any()):
            raise self._error
        return self._network(inputs, cache=cache)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[metal::malloc] Unable to allocate 123 bytes."),
        RuntimeError("cudaMallocAsync(&data, size) failed: out of memory"),
        MemoryError("std::bad_alloc"),
    ],
    ids=["metal", "cuda", "pages"],
)
def test_an_allocation_that_fails_costs_one_request_its_reply(stock: Any, error: Exception) -> None:
    alone = {each.id: text_of(run(stock, each), each.id) for each in JOBS}
    prefix = PrefixCache(keeper_of(make_caches(stock)), 1 << 24)
    memory, card = open_memory(stock, CARD, 0, EngineSettings(memory_bytes=1 << 30), prefix)
    backend = MlxBackend(Hungry(stock, error), 8, 32, prefix=prefix)
    engine = Engine(card, backend, EngineSettings(), memory=memory)
    for each in (*JOBS[:2], job("hungry", (1, 2, 99, 3), GREEDY), *JOBS[2:]):
        engine.add(each)
    events = finish(engine)
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.job_id == "hungry"
    assert isinstance(failed.error, EngineFault)
    assert failed.error.message == "the server ran out of memory"
    assert {each.id: text_of(events, each.id) for each in JOBS} == alone
    assert len([event for event in events if isinstance(event, Finished)]) == len(JOBS)
    engine.close()
