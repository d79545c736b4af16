"""The prefix cache on tiny networks, mlx's own caches: what is reused, and that it changes no token.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

import gc
from typing import Any

import mlx.core as mx
import pytest

from lattice_cli.engine.engine import Engine
from lattice_cli.engine.mlx_backend import MlxBackend
from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.engine.prefix_states import keeper_of
from lattice_cli.errors import EngineFault
from lattice_cli.events import Event, Failed, Finished, Prefilled, Started
from lattice_cli.job import Job, Limits, Prompt, Sampling
from lattice_cli.model.network import make_caches
from lattice_cli.model.upstream import file_limit_kept
from lattice_cli.settings import EngineSettings
from tests.engine.fake import text_of
from tests.engine.test_backend import CARD, GREEDY, Poisoned, ends_in_a_step
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


def kept_whole(network: Any) -> bool:
    """Whether a prompt is kept with its last token, to be cut where another needs less of it."""
    return ends_in_a_step(network) and bool(make_caches(network)[0].is_trimmable())


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


class Broken(Counted):
    """A network that raises so many times more."""

    faults = 0

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        if self.faults:
            self.faults -= 1
            raise RuntimeError("once")
        return super().__call__(inputs, cache)


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


def test_a_row_that_is_found_at_fault_leaves_no_reply(network: Any) -> None:
    """Its prompt was read by steps that went well; what it said is in doubt."""
    floor, ids = Floor(network), chat_of(1, 100)
    job = floor.job(ids, max_tokens=30)
    floor.engine.add(job)
    for _ in range(10):
        floor.engine.step()
    floor.engine._scheduler.running[job.id].fault = EngineFault("its grammar has no way on")
    events = floor.finish()
    assert [type(event) for event in events if isinstance(event, Failed | Finished)] == [Failed]
    assert {len(kept) for kept, _ in floor.cache.entries()} == {100 if kept_whole(network) else 99}


def test_what_is_kept_just_before_a_fault_is_forgotten(network: Any) -> None:
    """The step that ran when a row left had not come out yet."""
    broken = Broken(network)
    floor, first, second = Floor(broken), chat_of(1, 100), chat_of(2, 100)
    jobs = [floor.job(first, max_tokens=30), floor.job(second, max_tokens=30)]
    for job in jobs:
        floor.engine.add(job)
    for _ in range(12):
        floor.engine.step()
    floor.engine.cancel(jobs[0].id)
    assert any(len(kept) > 100 and kept[:100] == first for kept, _ in floor.cache.entries())
    broken.faults = 1
    events = floor.finish()
    assert not any(len(kept) > 100 and kept[:100] == first for kept, _ in floor.cache.entries())
    assert [event.job_id for event in events if isinstance(event, Failed | Finished)] == [jobs[1].id]


def test_nobody_waits_for_itself(network: Any) -> None:
    """The second waits for the first, the third for the second; then the first leaves, and both would wait for each
    other.
    """
    floor, start = Floor(network, chunk=16), chat_of(1, 100)
    middle = (*start, *chat_of(2, 60))
    prompts = [(*start, *chat_of(3, 90)), (*middle, *chat_of(4, 20)), (*middle, *chat_of(5, 20))]
    jobs = [floor.job(prompt) for prompt in prompts]
    for job in jobs:
        floor.engine.add(job)
    floor.engine.step()  # all have a slot, and nothing is read yet
    floor.engine.cancel(jobs[0].id)
    events = floor.finish()
    for job in jobs[1:]:
        assert text_of(events, job.id) == cold(network, job.prompt.ids)
    assert usage(events, jobs[2].id).cached_tokens == 160


@pytest.mark.parametrize("more", [0, 40])
def test_equal_prompts_in_flight_are_read_once(network: Any, more: int) -> None:
    """The second is the first, or goes on from it, or parts from it near the end; each waits and reads what is left."""
    ids, counted = chat_of(1, 200), Counted(network)
    floor = Floor(counted, chunk=32)
    prompts = [ids, (*ids, *chat_of(5, more)), (*ids[:150], *chat_of(6, more + 10))]
    jobs = [floor.job(prompt, max_tokens=3) for prompt in prompts]
    events = floor.run(*jobs)
    assert [text_of(events, job.id) for job in jobs] == [cold(network, prompt, 3) for prompt in prompts]
    known = 200 if more and kept_whole(network) else 199
    assert [usage(events, job.id).cached_tokens for job in jobs] == [0, known, 150]
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


# Caches of other kinds.


class With:
    """A network whose caches are of another kind."""

    def __init__(self, network: Any, make: Any) -> None:
        self._network = network
        self._make = make

    def make_cache(self) -> list[Any]:
        return [self._make() for _ in self._network.layers]

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        return self._network(inputs, cache=cache)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with file_limit_kept():
        from mlx_lm.utils import load_model
    return load_model(write_tiny_folder(tmp_path_factory.mktemp("tiny") / "llama", "llama"))[0]


@pytest.mark.parametrize("window", [64, 400])
def test_a_rotating_cache_is_trimmed_only_while_nothing_has_left_it(llama: Any, window: int) -> None:
    from mlx_lm.models.cache import RotatingKVCache

    network = With(llama, lambda: RotatingKVCache(window))
    floor, start = Floor(network), chat_of(1, 150)
    text, _ = floor.ask((*start, *chat_of(2, 60)), cuts=(150,))
    edited = (*start, *chat_of(3, 60))
    assert floor.ask(edited, cuts=(150,)) == (cold(network, edited), 150)
    longer = (*start, *chat_of(2, 60), *said(text), *chat_of(4, 30))
    assert floor.ask(longer) == (cold(network, longer), 218)
    inside = (*start, *chat_of(2, 60)[:20], *chat_of(5, 30))
    assert floor.ask(inside) == (cold(network, inside), 150 if window == 64 else 170)


def test_rows_whose_caches_cannot_be_merged_run_one_at_a_time(llama: Any) -> None:
    from mlx_lm.models.cache import ConcatenateKVCache

    network = With(llama, ConcatenateKVCache)
    floor, prompts = Floor(network, chunk=32), [chat_of(seed, 100) for seed in (1, 2, 3)]
    jobs = [floor.job(prompt) for prompt in prompts]
    events = floor.run(*jobs)
    assert [text_of(events, job.id) for job in jobs] == [cold(llama, prompt) for prompt in prompts]
    assert floor.ask(prompts[0]) == (cold(llama, prompts[0]), 99)
    cancelled, other = floor.job(chat_of(4, 100), max_tokens=50), floor.job(chat_of(5, 100))
    floor.engine.add(cancelled)
    floor.engine.add(other)
    for _ in range(12):
        floor.engine.step()
    floor.engine.cancel(cancelled.id)
    assert text_of(floor.finish(), other.id) == cold(llama, other.prompt.ids)


def filled(make: Any, tokens: int, chunk: int = 50) -> Any:
    """A cache with random keys and values."""
    cache, random = make(), mx.random.normal((2, 1, 2, tokens, 8))
    for at in range(0, tokens, chunk):
        cache.update_and_fetch(*random[..., at : at + chunk, :])
    return cache


def test_layers_of_several_kinds_are_kept_together() -> None:
    """A window in one layer and everything in the others, as Gemma's; the values of one are wider than its keys."""
    from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

    recurrent = ArraysCache(2)
    recurrent[0], recurrent[1] = mx.ones((1, 3)), mx.ones((1, 4, 4))
    wide = KVCache()
    wide.update_and_fetch(mx.ones((1, 2, 200, 8)), mx.ones((1, 2, 200, 12)))
    caches = [filled(KVCache, 200), filled(lambda: RotatingKVCache(64), 200), wide, recurrent, filled(KVCache, 200)]
    keeper = keeper_of(caches)
    assert (keeper.trims, keeper.trimmable(caches)) == (False, False)
    kept = keeper.keep(caches, 200, None, 0)
    assert kept is not None and not kept.trims
    assert keeper.keep(caches, 199, None, 0) is None
    for one, other in zip(caches, keeper.restore(kept, 200), strict=True):
        assert type(one) is type(other) and one is not other
        if type(one) is ArraysCache:
            pairs = list(zip(one.cache, other.cache, strict=True))
        else:
            pairs = list(zip(one.keys_and_values(), other.keys_and_values(), strict=True))
            assert one.offset == other.offset
        assert all(mx.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("tokens", [1, 127, 128, 129, 200])
def test_keys_and_values_are_cut_anywhere(tokens: int) -> None:
    from mlx_lm.models.cache import KVCache

    caches = [filled(KVCache, 200), filled(KVCache, 200)]
    keeper = keeper_of(caches)
    kept = keeper.keep(caches, 200, None, 0)
    assert kept is not None and kept.trims
    for one, other in zip(caches, keeper.restore(kept, tokens), strict=True):
        assert all(
            mx.array_equal(a[..., :tokens, :], b)
            for a, b in zip(one.keys_and_values(), other.keys_and_values(), strict=True)
        )


def test_blocks_that_two_prompts_begin_with_are_kept_once() -> None:
    from mlx_lm.models.cache import KVCache

    keeper, caches = keeper_of([KVCache()]), [filled(KVCache, 300)]
    first = keeper.keep(caches, 300, None, 0)
    assert first is not None
    second = keeper.keep(caches, 300, first, 270)
    assert second is not None
    assert len(first.pieces.keys() & second.pieces.keys()) == 2
