"""Engine speed, on a scripted model whose every count is known.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lattice_cli.bench.speed import SpeedPlan, fixed_prompt, run_speed
from lattice_cli.engine.open import open_engine
from lattice_cli.engine.worker import EngineWorker
from lattice_cli.errors import BenchError, EngineFault, UsageError
from lattice_cli.model.card import ModelSource
from lattice_cli.settings import EngineSettings, Home

pytestmark = pytest.mark.pure


@contextmanager
def scripted(folder: Path, **reply: object) -> Iterator[EngineWorker]:
    script = folder / "counting.json"
    script.write_text(json.dumps({"replies": [{"tokens": ["tick ", "tack "], "then": "repeat"} | reply]}))
    source, home, settings = ModelSource("counting", script, "script"), Home(folder, folder), EngineSettings()
    worker = EngineWorker(lambda: open_engine(source, home, settings), settings)
    worker.start()
    try:
        yield worker
    finally:
        assert worker.stop()


def test_warm_ups_are_left_out_and_every_trial_counts_exactly(tmp_path: Path) -> None:
    """Report 138: a first run that loads and compiles is an outlier."""
    with scripted(tmp_path) as worker:
        trials = list(run_speed(worker, SpeedPlan(prompt_tokens=100, max_tokens=9, trials=3, warmups=2)))
    assert [(trial.prompt_tokens, trial.cached_tokens, trial.completion_tokens) for trial in trials] == [
        (100, 0, 9)
    ] * 3


def test_decode_speed_does_not_hold_the_prompts_time(tmp_path: Path) -> None:
    """Report 134: 400 ms of prompt, then 8 steps of 10 ms: near 100 tok/s.

    A rate with the prompt's time inside is at most 8 / 0.48 = 17; a busy machine must make each step five
    times as long for a false alarm.
    """
    with scripted(tmp_path, prefill_ms=400, token_ms=10) as worker:
        (trial,) = run_speed(worker, SpeedPlan(prompt_tokens=100, max_tokens=9, trials=1, warmups=0))
    assert trial.decode_rate is not None
    assert trial.prefill_rate is not None
    assert trial.decode_rate > 20
    assert trial.prefill_rate < 251
    assert trial.first_token_s > 0.39


def test_a_prompt_is_exactly_as_long_as_asked_and_begins_unlike_the_others(tmp_path: Path) -> None:
    with scripted(tmp_path) as worker:
        card = worker.wait_ready(10)
        prompts = [fixed_prompt(card, tokens, f"{tokens} is the number. ") for tokens in (1, 7, 1000)]
    assert [len(prompt.ids) for prompt in prompts] == [1, 7, 1000]
    assert len({prompt.ids[0] for prompt in prompts}) == 2  # "1" and "7"; one token is one byte here


def test_a_prompt_beyond_the_window_is_a_usage_error(tmp_path: Path) -> None:
    with scripted(tmp_path) as worker, pytest.raises(UsageError) as caught:
        list(run_speed(worker, SpeedPlan(prompt_tokens=4000, max_tokens=96)))
    assert caught.value.message == (
        "`--prompt-tokens` 4000 and `--max-tokens` 96 do not fit the context window of 4096 tokens"
    )


def test_a_reply_without_tokens_is_no_measurement(tmp_path: Path) -> None:
    """Report 137."""
    with scripted(tmp_path, tokens=[], then="eos") as worker, pytest.raises(BenchError):
        list(run_speed(worker, SpeedPlan(prompt_tokens=10, max_tokens=9)))


def test_a_fault_of_the_engine_ends_the_run(tmp_path: Path) -> None:
    with scripted(tmp_path, raise_at=3) as worker, pytest.raises(EngineFault):
        list(run_speed(worker, SpeedPlan(prompt_tokens=10, max_tokens=9)))
