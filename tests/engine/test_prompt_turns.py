"""Whose prompt is read next on a real network: short ones are not kept waiting, and long ones get on.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from lattice_cli.engine.engine import Engine
from lattice_cli.engine.lane import Lane
from lattice_cli.engine.mlx_backend import MlxBackend
from lattice_cli.engine.pace import Pace
from lattice_cli.engine.prefill import PATIENCE, PromptBatch
from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.events import Event, Finished, Piece, Prefilled
from lattice_cli.kernels.state import DecoderState
from lattice_cli.model.upstream import file_limit_kept
from lattice_cli.settings import EngineSettings
from tests.engine.test_backend import CARD, GREEDY, job
from tests.tiny import write_tiny_folder

pytestmark = pytest.mark.tiny

ROWS = 8
LONG = tuple(index % 90 for index in range(330))


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with file_limit_kept():
        from mlx_lm.utils import load_model
    model, _ = load_model(write_tiny_folder(tmp_path_factory.mktemp("tiny") / request.param, request.param))
    return model


def engine_on(network: Any, chunk: int = 16) -> Engine:
    return Engine(CARD, MlxBackend(network, ROWS, chunk), EngineSettings())


def first(events: list[Event], kind: type[Event], name: str) -> bool:
    return any(isinstance(event, kind) and event.job_id == name for event in events)


def test_a_short_newcomer_is_read_next_and_heard_before_the_long_prompt_goes_on(network: Any) -> None:
    """Beside a prompt of 4,000 tokens, 20 tokens once waited for chunks that were not theirs."""
    engine = engine_on(network)
    engine.add(job("long", LONG, GREEDY))
    for _ in range(4):
        engine.step()
    engine.add(job("short", range(5), GREEDY, max_tokens=3))
    events: list[Event] = []
    steps = 0
    while not first(events, Piece, "short"):
        events += engine.step()
        steps += 1
    assert steps == 4  # a slot, its chunk, its first step, and the next, which tells what that one drew
    assert not first(events, Prefilled, "long")
    engine.close()


def test_a_long_prompt_gets_on_while_short_ones_keep_coming(network: Any) -> None:
    """Report 106: a long prompt must have its first token, whoever else is served."""
    engine = engine_on(network)
    engine.add(job("long", LONG, GREEDY, max_tokens=1))
    chunks: list[str] = []
    came = 0
    while chunks[-1:] != ["end"]:
        engine.add(job(f"short{came}", range(came % 7, 12), GREEDY, max_tokens=1))
        came += 1
        for event in engine.step():
            if isinstance(event, Prefilled) and event.done < event.total:
                chunks.append(event.job_id)
            elif isinstance(event, Finished) and event.job_id == "long":
                chunks.append("end")
    turns = [index for index, name in enumerate(chunks) if name == "long"]
    assert len(turns) >= len(LONG) // 16
    assert max(after - before for before, after in pairwise(turns)) <= (PATIENCE + 1) * ROWS
    engine.close()


def test_rows_that_come_together_are_no_crowd_and_one_that_comes_later_is(network: Any) -> None:
    """Chunks are shorter where requests meet; those of one request, or of one step, do not."""
    met: list[float] = []
    pace = Pace(64)
    pace.met = met.append  # type: ignore[method-assign]
    engine = Engine(CARD, MlxBackend(network, ROWS, 64, pace=pace), EngineSettings())
    engine.add(*(job(name, LONG, GREEDY) for name in "abc"))
    for _ in range(5):
        engine.step()
    assert met == []
    engine.add(job("d", LONG, GREEDY))
    engine.step()
    assert len(met) == 1
    engine.close()


def test_chunks_follow_the_pace_while_a_stream_runs(network: Any) -> None:
    """With a stream beside it a long prompt is read in many more pieces than alone, and to its end."""
    pace = Pace(64)
    engine = Engine(CARD, MlxBackend(network, ROWS, 64, pace=pace), EngineSettings())
    engine.add(job("stream", range(9), GREEDY, max_tokens=400))
    for _ in range(30):
        engine.step()
    for _ in range(60):  # a machine whose steps take as long as 12 tokens of a prompt
        pace.took(0.012, 1, 0, 1)
        pace.took(0.064, 1, 64, 0)
    assert pace.chunk(1, full=False) < 100
    engine.add(job("long", LONG, GREEDY, max_tokens=1))
    events: list[Event] = []
    while not first(events, Finished, "long"):
        events += engine.step()
    chunks = [event.done for event in events if isinstance(event, Prefilled) and event.job_id == "long"]
    assert len(chunks) > len(LONG) / 64
    assert chunks[-1] == len(LONG)
    engine.close()


@pytest.mark.parametrize(
    ("joins", "row_tokens", "chosen"),
    [
        (True, 25, [25, 25, 25, 15]),  # rows of any lengths are one pass
        (False, 25, [25, 25, 25]),  # fifteen of one row would be padded to 25
        (True, 18, [18] * 5),
        (False, 18, [18] * 5),
        (True, None, [30] * 3),  # three prompts end: nobody else's is begun
    ],
)
def test_a_chunk_is_shared_among_rows_without_padding(joins: bool, row_tokens: int | None, chosen: list[int]) -> None:
    class Native:
        def Sequence(self, _shape: object) -> object:
            return object()

    Native.joins = joins  # type: ignore[attr-defined]
    batch = PromptBatch(None, lambda: [DecoderState(Native(), None)], PrefixCache())
    for number in range(6):
        batch.add(Lane(str(number), list(range(31)), lambda logits: logits, [], []))
    assert [portion.count for portion in batch.choose(90, row_tokens)] == chosen
