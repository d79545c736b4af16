"""The prefix cache on tiny networks, mlx's own caches: what is reused, and that it changes no token.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

import gc
from typing import Any

import mlx.core as mx
import pytest

from lattice_cli.engine.backend import MlxBackend
from lattice_cli.engine.engine import Engine
from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.engine.prefix_states import keeper_of
from lattice_cli.events import Event, Failed, Finished, Prefilled, Started
from lattice_cli.job import Job, Limits, Prompt, Sampling
from lattice_cli.model.network import make_caches
from lattice_cli.model.upstream import file_limit_kept
from lattice_cli.settings import EngineSettings
from tests.engine.fake import text_of
from tests.engine.test_backend import CARD, GREEDY, Poisoned
from tests.tiny import write_tiny_folder

pytestmark = pytest.mark.tiny

BUDGET = 200_000_000
Ids = tuple[int, ...]


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with file_limit_kept():
        from mlx_lm.utils import load_model
    model, _ = load_model(write_tiny_folder(tmp_path_factory.mktemp("tiny") / request.param, request.param))
    return model


def chat_of(seed: int, length: int) -> Ids:
    return tuple((seed * 31 + at * at * 7 + at) % 250 for at in range(length))


class Floor:
    """An engine with a cache, one job after the other or several at once."""

    def __init__(self, network: Any, budget: int = BUDGET, chunk: int = 64) -> None:
        self.cache = PrefixCache(keeper_of(make_caches(network)), budget)
        self.engine = Engine(CARD, MlxBackend(network, 8, chunk, prefix=self.cache), EngineSettings())
        self.number = 0

    def job(self, ids: Ids, max_tokens: int = 8, cuts: Ids = (), sampling: Sampling = GREEDY) -> Job:
        self.number += 1
        return Job(f"job{self.number}", Prompt(ids, "", cuts=cuts), sampling, Limits(max_tokens))

    def run(self, *jobs: Job) -> list[Event]:
        for each in jobs:
            self.engine.add(each)
        return self.finish()

    def finish(self) -> list[Event]:
        events: list[Event] = []
        for _ in range(2000):
            if self.engine.idle:
                break
            try:
                events += self.engine.step()
            except RuntimeError as fault:
                events += self.engine.reset(fault)
        return events

    def ask(self, ids: Ids, max_tokens: int = 8, cuts: Ids = ()) -> tuple[str, int]:
        """The greedy text, and how many tokens came from the cache."""
        job = self.job(ids, max_tokens, cuts)
        events = self.run(job)
        return text_of(events, job.id), usage(events, job.id).cached_tokens


class Counted:
    """A network that writes down how many tokens it was given."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.read: list[int] = []

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        self.read.append(inputs.size)
        return self._network(inputs, cache=cache)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


def usage(events: list[Event], job_id: str) -> Any:
    (end,) = [event for event in events if isinstance(event, Finished) and event.job_id == job_id]
    return end.usage


def cold(network: Any, ids: Ids, max_tokens: int = 8) -> str:
    return Floor(network, budget=0).ask(ids, max_tokens)[0]


def harmless(network: Any, length: int) -> list[Ids]:
    """Prompts without the poisonous token, which their replies do not have either."""
    prompts = [tuple(1 if token == 99 else token for token in chat_of(seed, length)) for seed in range(12)]
    return [prompt for prompt in prompts if "c" not in cold(network, prompt)]


def said(text: str) -> Ids:
    return tuple(map(ord, text))


def test_the_same_prompt_again_reads_one_token(network: Any) -> None:
    """Report 70: twice and three times the same body. Report 72: the prompt's count stays whole."""
    floor, ids = Floor(network), chat_of(1, 150)
    first = floor.ask(ids)
    assert first == (cold(network, ids), 0)
    for _ in range(2):
        assert floor.ask(ids) == (first[0], 149)


def test_the_next_turn_reads_what_is_new(network: Any) -> None:
    """Report 69: on hybrid models the cache stored and never served. Report 71: every request stores, not some."""
    floor, ids = Floor(network), chat_of(1, 150)
    text, _ = floor.ask(ids)
    for turn in range(3):
        ids = (*ids, *said(text), *chat_of(turn + 2, 20))
        text, cached = floor.ask(ids)
        assert text == cold(network, ids)
        assert cached == len(ids) - 20


def test_an_edited_last_turn_reads_that_turn(network: Any) -> None:
    """Rivals reuse 0 of 74 tokens here on a hybrid model without a system turn."""
    floor, start = Floor(network), chat_of(1, 120)
    floor.ask((*start, *chat_of(2, 40)), cuts=(120,))
    edited = (*start, *chat_of(3, 40))
    text, cached = floor.ask(edited, cuts=(120,))
    assert (text, cached) == (cold(network, edited), 120)


def test_the_third_prompt_starts_where_two_parted(network: Any) -> None:
    """No turn begins there: the second prompt's look-up finds the place."""
    floor, start = Floor(network), chat_of(1, 100)
    cached = [floor.ask((*start, *chat_of(seed, 50)))[1] for seed in (2, 3, 4)]
    assert cached[2] == 100


def test_a_prompt_that_is_the_beginning_of_another(network: Any) -> None:
    """Report 68, its last case."""
    floor, ids = Floor(network), chat_of(1, 150)
    floor.ask(ids)
    text, cached = floor.ask(ids[:90])
    assert text == cold(network, ids[:90])
    assert cached in (0, 89)


def test_progress_begins_with_what_is_cached(network: Any) -> None:
    floor, ids = Floor(network, chunk=32), chat_of(1, 150)
    text, _ = floor.ask(ids)
    job = floor.job((*ids, *said(text), *chat_of(2, 70)))
    events = floor.run(job)
    (started,) = [event for event in events if isinstance(event, Started)]
    assert (started.prompt_tokens, started.cached_tokens) == (228, 158)
    done = [event.done for event in events if isinstance(event, Prefilled)]
    assert done[0] > 158 and done == sorted(done) and done[-1] == 228


def test_a_cancelled_row_leaves_what_it_read(network: Any) -> None:
    ids = chat_of(1, 150)
    for steps in (3, 4, 6, 9):
        floor = Floor(network, chunk=64)
        job = floor.job(ids, max_tokens=50)
        floor.engine.add(job)
        for _ in range(steps):
            floor.engine.step()
        floor.engine.cancel(job.id)
        text, cached = floor.ask(ids)
        assert text == cold(network, ids)
        assert cached in (64, 128, 149)
        assert cached == 149 or steps < 5


def test_a_row_that_fails_leaves_nothing(network: Any) -> None:
    """An error leaves no entry behind, and costs those kept before nothing."""
    floor = Floor(Poisoned(network))
    good, other, *_ = harmless(network, 100)
    bad = (*other, 99, 3)
    floor.ask(good)
    before = floor.cache.stats
    events = floor.run(floor.job(bad))
    assert [type(event) for event in events if isinstance(event, Failed | Finished)] == [Failed]
    assert {ids for ids, _ in floor.cache.entries() if ids[:50] == bad[:50] and 99 in ids} == set()
    assert floor.cache.stats.bytes >= before.bytes
    assert floor.ask(good) == (cold(network, good), 99)


def test_rows_beside_a_fault_go_on_from_what_is_kept(network: Any) -> None:
    floor = Floor(Poisoned(network))
    first, second, bad, *_ = harmless(network, 120)
    jobs = [floor.job(first), floor.job(second)]
    events = floor.run(jobs[0], floor.job((*bad, 99, 3)), jobs[1])
    assert [event.job_id for event in events if isinstance(event, Failed)] == ["job3"]
    assert [text_of(events, job.id) for job in jobs] == [cold(network, job.prompt.ids) for job in jobs]


@pytest.mark.parametrize("more", [0, 40])
def test_equal_prompts_in_flight_are_read_once(network: Any, more: int) -> None:
    """The second is the first, or goes on from it, or parts from it near the end; each waits and reads what is left."""
    ids, counted = chat_of(1, 200), Counted(network)
    floor = Floor(counted, chunk=32)
    prompts = [ids, (*ids, *chat_of(5, more)), (*ids[:150], *chat_of(6, more + 10))]
    jobs = [floor.job(prompt, max_tokens=3) for prompt in prompts]
    events = floor.run(*jobs)
    assert [text_of(events, job.id) for job in jobs] == [cold(network, prompt, 3) for prompt in prompts]
    assert [usage(events, job.id).cached_tokens for job in jobs] == [0, 199, 150]
    assert sum(counted.read) < 200 + 2 * more + 10 + 40


def test_a_row_whose_reader_is_cancelled_goes_on_from_there(network: Any) -> None:
    ids = chat_of(1, 200)
    floor = Floor(network, chunk=32)
    first, second = floor.job(ids), floor.job(ids)
    floor.engine.add(first)
    floor.engine.add(second)
    for _ in range(4):
        floor.engine.step()
    floor.engine.cancel(first.id)
    events = floor.finish()
    assert text_of(events, second.id) == cold(network, ids)
    assert 32 <= usage(events, second.id).cached_tokens < 199


def test_choices_share_what_is_cached_too(network: Any) -> None:
    floor, ids = Floor(network), chat_of(1, 150)
    text, _ = floor.ask(ids)
    prompt = Prompt((*ids, *said(text), 7, 8, 9), "")
    jobs = [Job(f"choice{n}", prompt, GREEDY, Limits(4), choice=n) for n in range(3)]
    floor.engine.add(*jobs)
    events = floor.finish()
    assert {text_of(events, job.id) for job in jobs} == {cold(network, prompt.ids, 4)}
    assert [usage(events, job.id).cached_tokens for job in jobs] == [158] * 3


def test_memory_stays_within_the_budget_and_comes_back(network: Any) -> None:
    """An entry that is a slice of a batch would keep the whole batch alive."""
    floor = Floor(network, budget=1_500_000)
    floor.ask(chat_of(0, 300))
    floor.cache.clear()
    gc.collect()
    mx.clear_cache()
    empty = mx.get_active_memory()
    for seed in range(12):
        floor.run(*(floor.job(chat_of(seed * 4 + row, 200 + 40 * row)) for row in range(4)))
        assert floor.cache.stats.bytes <= 1_500_000
        mx.clear_cache()
        assert mx.get_active_memory() - empty <= 1_500_000 + 300_000
    assert floor.cache.stats.evictions > 0
    held = mx.get_active_memory() - empty
    assert held == pytest.approx(floor.cache.stats.bytes, abs=200_000)
    floor.cache.clear()
    mx.clear_cache()
    assert mx.get_active_memory() - empty < 50_000
