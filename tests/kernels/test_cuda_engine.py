"""The engine on a fused decoder of an NVIDIA GPU, whose kernels run on the emulator: rows that come and go, prompts in
chunks beside replies, what the prefix cache keeps, and files of that for another process.

Thread: any
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lattice_cli.engine.engine import Engine
from lattice_cli.engine.mlx_backend import MlxBackend
from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.engine.prefix_disk import DiskShelf
from lattice_cli.engine.prefix_saved import SavedPrefixCache
from lattice_cli.engine.prefix_states import keeper_of
from lattice_cli.events import Event, Failed, Finished
from lattice_cli.job import Sampling
from lattice_cli.model.network import make_caches
from lattice_cli.settings import EngineSettings
from tests.engine.test_backend import CARD, GREEDY, job, text_of
from tests.kernels import test_cuda

pytestmark = [
    *test_cuda.pytestmark,
    pytest.mark.skipif(bool(test_cuda.GPU), reason="rounding differs with the company"),
]

emulator = test_cuda.emulator
JOBS = (
    job("greedy", range(40), GREEDY, 6),
    job("drawn", range(10, 60), Sampling(0.9, 20, 0.9, seed=7), 8),
    job("penalised", range(5), Sampling(1.0, 0, 1.0, 0.05, 1.3, 0.4, 0.2, seed=4), 5),
)
BUDGET = 100_000_000


@pytest.fixture(scope="module")
def network(emulator: None) -> Any:
    return test_cuda.Pair(test_cuda.qwen35()).network


def run(network: Any, *jobs: Any, chunk: int = 32, prefix: PrefixCache | None = None) -> list[Event]:
    engine = Engine(CARD, MlxBackend(network, 8, chunk, prefix=prefix), EngineSettings())
    engine.add(*jobs)
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
    engine.close()
    return events


def test_rows_beside_each_other_say_what_they_say_alone(network: Any) -> None:
    alone = {each.id: text_of(run(network, each), each.id) for each in JOBS}
    together = run(network, *JOBS, chunk=16)
    assert not [event for event in together if isinstance(event, Failed)]
    assert {each.id: text_of(together, each.id) for each in JOBS} == alone
    assert len(set(alone.values())) == len(JOBS)


def test_what_was_read_is_not_read_again_also_after_a_restart(network: Any, tmp_path: Path) -> None:
    ids = tuple(index * 7 % 190 for index in range(150))
    longer = (*ids, 5, 6, 7, 8)

    def ask(prompt: tuple[int, ...], prefix: PrefixCache | None) -> tuple[str, int]:
        events = run(network, job("a", prompt, GREEDY, 4), prefix=prefix, chunk=64)
        (end,) = [event for event in events if isinstance(event, Finished)]
        return text_of(events, "a"), end.usage.cached_tokens

    def saved() -> PrefixCache:
        return SavedPrefixCache(keeper_of(make_caches(network)), BUDGET, DiskShelf(tmp_path, "a" * 64, BUDGET))

    fresh = ask(longer, None)
    assert ask(ids, saved())[1] == 0
    assert [*tmp_path.glob("*/*.prefix")]
    text, cached_tokens = ask(longer, saved())
    assert (text, cached_tokens) == (fresh[0], 149) and fresh[1] == 0
    mx.synchronize()
