"""Every test of MlxBackend again, and some of rows with wishes, on a quantized tiny model whose layers and functions
are the native kernels'.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lattice_cli.engine.backend import Emitted, PassFault, Progress
from lattice_cli.engine.engine import Engine
from lattice_cli.engine.mlx_backend import MlxBackend
from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.engine.prefix_states import keeper_of
from lattice_cli.engine.row import Row
from lattice_cli.events import Event, Failed, Finished
from lattice_cli.job import Job
from lattice_cli.kernels import fused, install, native_choice
from lattice_cli.model.network import make_caches
from lattice_cli.model.upstream import file_limit_kept
from lattice_cli.settings import EngineSettings, Home
from tests.engine.fake import text_of
from tests.engine.test_backend import *  # noqa: F403
from tests.engine.test_backend import CARD, GREEDY, job, run
from tests.engine.test_wishes import (  # noqa: F401
    test_a_choice_that_is_cancelled_leaves_the_others_exact,
    test_a_held_row_gives_what_its_schema_says_and_free_rows_stay_exact,
    test_choices_may_have_wishes_of_their_own,
    test_choices_read_their_prompt_once_in_waves_too,
    test_scores_are_the_log_softmax_of_raw_logits_of_a_direct_pass,
)
from tests.tiny import write_tiny_folder

pytestmark = [pytest.mark.tiny, pytest.mark.timeout(300)]

CACHE = Path("~/.cache/lattice-tests").expanduser()  # where compiled kernels stay between runs


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3", "qwen3_5"])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    native = native_choice.choose(Home(CACHE, CACHE / "models", kernels="exact"))
    if native.module is None:
        pytest.skip(native.reason)
    with file_limit_kept():
        from mlx_lm.utils import load_model
    from mlx.nn import quantize

    model, _ = load_model(write_tiny_folder(tmp_path_factory.mktemp("tiny") / request.param, request.param))
    quantize(model, 32, 4, class_predicate=lambda _, m: hasattr(m, "to_quantized") and m.weight.shape[-1] % 32 == 0)
    assert install.pack_modules(model, native.module, exact=True) > 10
    assert fused.fuse(model, native.module, half=False) is None
    install.put_functions(native.module)
    yield model
    install.take_functions()


class Counted:
    """A network that writes down how many tokens each of its passes had."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.passes: list[int] = []

    def __call__(self, inputs: Any, cache: Any = None) -> Any:
        self.passes.append(inputs.size)
        return self._network(inputs, cache=cache)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


STREAM = job("stream", (5, 6, 7), GREEDY, max_tokens=40)
NEWCOMER = job("newcomer", range(70), GREEDY, max_tokens=8)


def begun(network: Any, *jobs: Job) -> tuple[Engine, list[Event]]:
    """A stream that has its first tokens, and a newcomer whose first chunk is on its way beside it."""
    engine = Engine(CARD, MlxBackend(network, 4, 32), EngineSettings())
    for each in (STREAM, *jobs):
        engine.add(each)
    events = [event for _ in range(5) for event in engine.step()]
    engine.add(NEWCOMER)
    return engine, events + [event for _ in range(2) for event in engine.step()]


def test_a_prompt_is_read_in_the_passes_of_a_stream(network: Any) -> None:
    """The weights are read once for both: no pass beyond those that the stream makes anyway."""
    alone = {each.id: text_of(run(network, each), each.id) for each in (STREAM, NEWCOMER)}
    counted = Counted(network)
    engine, events = begun(counted)
    while not engine.idle:
        events += engine.step()
    assert {name: text_of(events, name) for name in alone} == alone
    assert counted.passes[0] == 3  # the stream's own prompt, with its first token
    assert len(counted.passes) <= STREAM.limits.max_tokens + 1
    assert sum(counted.passes) >= 3 + 39 + 70 + 7


def test_a_prompt_is_told_to_be_read_when_it_is(network: Any) -> None:
    """The pass with its end runs on when `advance` comes back; who measures would take that for the end of reading."""
    backend = MlxBackend(network, 4, 32)
    backend.insert(Row(job("a", range(20), GREEDY, max_tokens=3), CARD))
    assert backend.advance() == []
    told = backend.advance()
    assert told[0] == Progress("a", 20, 20) and isinstance(told[1], Emitted) and len(told) == 2
    backend.close()


def test_nothing_is_told_of_a_row_that_left(network: Any) -> None:
    """Who leaves may come again under the same name, as after a fault."""
    backend = MlxBackend(network, 4, 32)
    row = Row(job("a", range(20), GREEDY, max_tokens=3), CARD)
    backend.insert(row)
    backend.advance()
    backend.remove(["a"])
    backend.insert(row)
    assert backend.advance() == []
    backend.close()


class Failing:
    """A network whose next pass with a chunk fails once it is told to, when somebody waits for what the chunk wrote."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.fails = False

    def __call__(self, inputs: Any, cache: Any = None) -> Any:
        logits = self._network(inputs, cache=cache)
        if self.fails and inputs.shape[1] > 1:
            self.fails = False
            half = mx.zeros((1, 4, 4), dtype=mx.float16)
            cache[0]._marks = [mx.gather_mm(half, half, mx.array([0]), mx.array([0]))]  # "only supports float32", later
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


def left_by(network: Any, leaving: Sequence[str], prefix: PrefixCache | None = None) -> tuple[Engine, list[Event]]:
    """A stream and a newcomer in a pass that failed; some of them have left."""
    engine = Engine(CARD, MlxBackend(network, 4, 32, prefix=prefix), EngineSettings())
    engine.add(STREAM)
    events = [event for _ in range(5) for event in engine.step()]
    engine.add(NEWCOMER)
    events += engine.step()
    network.fails = True
    while network.fails:
        events += engine.step()
    for name in leaving:
        events += engine.cancel(name)
    return engine, events


def finish(engine: Engine, faults: list[Exception]) -> list[Event]:
    """All events to come; a turn's worth of them after a fault, as the desk has it."""
    events: list[Event] = []
    while not engine.idle or engine.ready_in_s() == 0:
        try:
            events += engine.step()
        except RuntimeError as fault:
            faults.append(fault)
            events += engine.reset(fault)
    return events


@pytest.mark.parametrize("leaving", [("stream",), ("newcomer",)])
def test_a_fault_that_shows_when_a_row_leaves_is_found_by_the_next_step(network: Any, leaving: tuple[str]) -> None:
    """Leaving waits for the pass that runs; who leaves is let go all the same, and the other is not blamed."""
    alone = {each.id: text_of(run(network, each), each.id) for each in (STREAM, NEWCOMER)}
    engine, events = left_by(Failing(network), leaving)
    faults: list[Exception] = []
    events += finish(engine, faults)
    assert [type(fault) for fault in faults] == [PassFault] and "float32" in str(faults[0])
    (other,) = alone.keys() - leaving
    assert text_of(events, other) == alone[other]
    ends = {event.job_id: event.reason for event in events if isinstance(event, Finished)}
    assert ends == {name: "cancelled" if name in leaving else "length" for name in alone}


@pytest.mark.parametrize("early", [True, False])
def test_a_pass_that_failed_as_its_last_row_left_is_not_the_next_rows_fault(network: Any, early: bool) -> None:
    """It was raised with the next row to come, which failed: a request that had done nothing wrong."""
    third = job("third", range(60), GREEDY, max_tokens=8)
    alone = text_of(run(network, third), "third")
    prefix = PrefixCache(keeper_of(make_caches(network)), 50_000_000)
    engine, events = left_by(Failing(network), ("stream", "newcomer"), prefix)
    assert engine.idle and engine.ready_in_s() == 0
    faults: list[Exception] = []
    if not early:
        events += finish(engine, faults)
        assert len(faults) == 1 and engine.ready_in_s() is None
        kept = [ids for ids, _ in prefix.entries()]
        assert all(len(ids) <= len(STREAM.prompt.ids) for ids in kept)  # nothing of that pass is kept
    engine.add(third)
    events += finish(engine, faults)
    assert len(faults) == 1
    assert not [event for event in events if isinstance(event, Failed)]
    assert text_of(events, "third") == alone
