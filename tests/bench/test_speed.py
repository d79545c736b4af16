"""Engine speed, on a scripted model whose every delay is known: exactly, under a clock that only the script moves.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lattice_cli.bench.gpu_trace import Kernel
from lattice_cli.bench.noise import Watch
from lattice_cli.bench.speed import Gauges, Point, SpeedPlan, run_point
from lattice_cli.bench.speed_trial import Trial
from lattice_cli.bench.speed_turns import Rival, run_turns
from lattice_cli.engine.engine import Engine
from lattice_cli.engine.measure_trial import RowTimes, TimedBackend, run_rows
from lattice_cli.engine.scripted import ScriptedBackend, ScriptTokenizer, open_script, read_script
from lattice_cli.errors import BenchError, EngineFault, UsageError
from lattice_cli.job import Job
from lattice_cli.model.card import ModelCard, ModelSource
from lattice_cli.settings import EngineSettings
from tests.bench.clock import VirtualClock

pytestmark = pytest.mark.pure

Run = Callable[[Sequence[Job]], list[RowTimes]]


def scripted(folder: Path, think: Sequence[str] | None = None, **reply: object) -> tuple[ModelCard, Run]:
    """A model of 300 ms a prompt and 20 ms a token, and a run of it under a virtual clock."""
    words = {"tokens": ["tick ", "tack "], "then": "repeat", "prefill_ms": 300, "token_ms": 20} | reply
    file = folder / "counting.json"
    file.write_text(json.dumps({"replies": [words], **({"think": think} if think else {})}))
    card, _ = open_script(ModelSource("counting", file, "script"), None)
    script, clock = read_script(file), VirtualClock()
    tokenizer = ScriptTokenizer(script)
    timed = TimedBackend(ScriptedBackend(script, tokenizer, clock), clock)
    engine = Engine(card, timed, EngineSettings(), clock)
    return card, lambda jobs: run_rows(engine, timed, jobs, clock.sleep)


def measured(
    folder: Path, point: Point, trials: int = 1, warmups: int = 0, think: Sequence[str] | None = None, **reply: object
) -> list[Trial]:
    card, run = scripted(folder, think, **reply)
    plan = SpeedPlan(trials=trials, warmups=warmups)
    return list(run_point(card, run, plan, point, Gauges(Watch())))


def test_known_delays_are_measured_exactly(tmp_path: Path) -> None:
    """Report 134: prefill and decode apart. 300 ms for 600 tokens, then 20 ms for each token."""
    (trial,) = measured(tmp_path, Point(600, 9))
    (row,) = trial.rows
    assert row.read_s == pytest.approx(0.3, abs=1e-9)
    assert row.tokens_s == pytest.approx([0.3 + 0.02 * (at + 1) for at in range(9)], abs=1e-9)
    assert trial.prefill_rate == pytest.approx(2000)
    assert trial.decode_rate == pytest.approx(50)
    assert trial.first_token_s == pytest.approx(0.32)


@pytest.mark.parametrize("tokens", [10, 3000])
def test_decode_speed_does_not_depend_on_the_prompts_length(tmp_path: Path, tokens: int) -> None:
    """Report 134."""
    (trial,) = measured(tmp_path, Point(tokens, 64), prefill_ms=tokens)
    assert trial.decode_rate == pytest.approx(50)
    assert trial.prefill_rate == pytest.approx(1000)


def test_rows_beside_each_other_are_added_where_all_of_them_decode(tmp_path: Path) -> None:
    (trial,) = measured(tmp_path, Point(600, 9, rows=4))
    assert trial.prefill_rate == pytest.approx(8000)
    assert trial.decode_rate == pytest.approx(200)
    assert len(trial.rows) == 4


def test_tokens_before_the_last_row_decodes_are_in_no_decode_rate() -> None:
    """A row that began a second before the others: its first tokens came alone."""
    early = RowTimes(10, 0, 4, 0, 0.1, (0.2, 1.0, 1.2, 1.4))
    late = RowTimes(10, 0, 4, 0, 0.9, (1.1, 1.3, 1.5, 1.7))
    trial = Trial((early, late))
    assert trial.decode_rate == pytest.approx(3 / (1.4 - 1.1))  # 1.2 and 1.4 of the one, 1.3 of the other
    assert trial.prefill_rate == pytest.approx(20 / 0.9)
    assert Trial((early, RowTimes(10, 0, 2, 0, 1.9, (2.0, 2.1)))).decode_rate is None
    told = replace(early, submits_s=(0.5, 0.6, 0.01, 0.02))  # the first two came before all rows decoded
    assert trial.steps == 2
    assert (Trial((told, late)).host_step_s, trial.host_step_s) == (0.015, None)
    assert Trial((replace(told, submits_s=(0.5, 0.6, None, None)), late)).host_step_s is None


def test_what_steps_have_of_a_gpu_comes_from_a_trial_of_its_own(tmp_path: Path) -> None:
    """Traced after every trial that is timed, over the steps of all rows and nothing else."""
    card, run = scripted(tmp_path)
    events: list[str] = []

    class Trace:
        def begin(self) -> None:
            events.append("begin")

        def end(self) -> list[Kernel]:
            events.append("end")
            return [Kernel("k", at / 1000, (at + 5) / 1000) for at in range(0, 10_000, 10)]  # busy half of the time

    def go(jobs: Sequence[Job]) -> list[RowTimes]:
        events.append("run")
        return [replace(row, began_s=2.0) for row in run(jobs)]

    plan = SpeedPlan(prompt_tokens=(20,), tokens=4, rows=(2,), trials=2, warmups=0)
    (one,) = run_turns(card, go, plan, Gauges(Watch()), {}, Trace)  # type: ignore[arg-type]
    assert events == ["run", "run", "begin", "run", "end"]
    assert len(one.trials) == 2 and one.load is not None
    step_s = one.trials[0].rows[0].tokens_s[1] - one.trials[0].rows[0].tokens_s[0]
    assert one.load.busy_s == pytest.approx(step_s / 2) and one.load.kernels == pytest.approx(step_s * 100)


def test_hidden_tokens_are_counted(tmp_path: Path) -> None:
    """A thought is as much work as an answer: 9 tokens, of which the markers and the thought are 4."""
    reply = {"tokens": ["<think>", "hm", "m", "</think>", "a", "b", "c", "d", "e"], "then": "eos"}
    (trial,) = measured(tmp_path, Point(100, 9), think=("<think>", "</think>"), **reply)
    (row,) = trial.rows
    assert (row.completion_tokens, len(row.tokens_s)) == (9, 9)
    assert row.reasoning_tokens >= 2
    assert trial.decode_rate == pytest.approx(50)


def test_warm_ups_are_left_out_and_every_trial_counts_exactly(tmp_path: Path) -> None:
    """Report 138: a first run that loads and compiles is an outlier."""
    card, run = scripted(tmp_path)
    asked: list[Sequence[Job]] = []

    def counted(jobs: Sequence[Job]) -> list[RowTimes]:
        asked.append(jobs)
        return run(jobs)

    trials = list(run_point(card, counted, SpeedPlan(trials=3, warmups=2), Point(100, 9), Gauges(Watch())))
    assert [(row.prompt_tokens, row.completion_tokens) for trial in trials for row in trial.rows] == [(100, 9)] * 3
    assert len(asked) == 5
    assert len({jobs[0].prompt.ids[:4] for jobs in asked}) == 5


def test_an_end_does_not_cut_a_trial_short(tmp_path: Path) -> None:
    """Report 137: a model that ends at once would be measured by its first tokens. Ends are tokens like any other."""
    (trial,) = measured(tmp_path, Point(100, 9), tokens=["a"], then="eos")
    assert trial.rows[0].completion_tokens == 9


def test_a_warm_and_an_edited_prompt_are_asked_after_what_they_go_on_from(tmp_path: Path) -> None:
    """Without a prefix cache they are as slow as a new one, and no token is said to come from a cache."""
    card, run = scripted(tmp_path)
    asked: list[Job] = []

    def kept(jobs: Sequence[Job]) -> list[RowTimes]:
        asked.extend(jobs)
        return run(jobs)

    for prefix in ("warm", "edited"):
        (trial,) = run_point(card, kept, SpeedPlan(trials=1, warmups=0), Point(160, 4, prefix=prefix), Gauges(Watch()))
        assert trial.cached_tokens == 0
        assert trial.prefill_rate == pytest.approx(160 / 0.3)
    cold, warm, before, edited = (job.prompt.ids for job in asked)
    assert warm[:150] == cold[:150] and warm != cold and len(warm) == 160
    assert edited[:80] == before[:80] and edited[90:] == before[90:] and edited != before


def test_turns_alternate_and_rivals_are_asked_only_what_they_can_do(tmp_path: Path) -> None:
    """A machine that slows down slows all of them alike."""
    card, run = scripted(tmp_path)
    turns: list[str] = []

    def named(name: str) -> Run:
        def go(jobs: Sequence[Job]) -> list[RowTimes]:
            turns.append(name)
            return run(jobs)

        return go

    def prepare(point: Point) -> None:
        turns.append(f"{point}: ")

    plan = SpeedPlan(prompt_tokens=(20,), tokens=4, rows=(1, 2), prefixes=("cold", "warm"), trials=3, warmups=1)
    rivals = {"mlx-lm": Rival(named("B")), "transformers": Rival(named("C"), prepare, here=False)}
    found = run_turns(card, named("A"), plan, Gauges(Watch()), rivals)
    by_turns = "AABBCC" + "CBA" + "ABC"  # the first of each engine's trials comes after its warm-up
    assert "".join(turns) == (
        f"20 + 4 tokens, transformers: {by_turns}" + "A" * 8  # a warm trial reads each row's prompt first
        + f"20 + 4 tokens, 2 rows, transformers: {by_turns}" + "A" * 12
    )  # fmt: skip
    assert [(str(one.point), len(one.trials), one.load) for one in found] == [
        ("20 + 4 tokens", 3, None),
        ("20 + 4 tokens, mlx-lm", 3, None),
        ("20 + 4 tokens, transformers", 3, None),
        ("20 + 4 tokens, warm prefix", 3, None),
        ("20 + 4 tokens, 2 rows", 3, None),
        ("20 + 4 tokens, 2 rows, mlx-lm", 3, None),
        ("20 + 4 tokens, 2 rows, transformers", 3, None),
        ("20 + 4 tokens, 2 rows, warm prefix", 3, None),
    ]


def test_a_prompt_beyond_the_window_is_a_usage_error(tmp_path: Path) -> None:
    card, _ = scripted(tmp_path)
    with pytest.raises(UsageError) as caught:
        SpeedPlan(prompt_tokens=(10, 4000), tokens=96).check(card)
    assert caught.value.message == (
        "`--prompt-tokens` 4000 and `--tokens` 96 do not fit the context window of 4096 tokens"
    )


def test_a_reply_that_falls_silent_is_no_measurement(tmp_path: Path) -> None:
    """Report 137."""
    with pytest.raises(BenchError, match="fell silent"):
        measured(tmp_path, Point(10, 9), then="hang")


def test_a_fault_of_the_engine_ends_the_run_and_leaves_it_empty(tmp_path: Path) -> None:
    with pytest.raises(EngineFault):
        measured(tmp_path, Point(10, 9, rows=2), raise_at=3)
