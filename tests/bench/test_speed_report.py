"""What a measured engine leaves behind: a table for people, one line of JSON for programs.

Thread: any
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.bench.gpu_trace import Load
from lattice_cli.bench.headroom import Headroom
from lattice_cli.bench.machine import Machine
from lattice_cli.bench.noise import Noise
from lattice_cli.bench.record import Outlet, Setting, figure
from lattice_cli.bench.speed import Measured, Point, SpeedPlan
from lattice_cli.bench.speed_report import DEFINITIONS, Facts, show_speed, speed_record
from lattice_cli.bench.speed_trial import Trial
from lattice_cli.engine.measure_limits import MachineLimits, Weights
from lattice_cli.engine.measure_trial import RowTimes
from lattice_cli.errors import UsageError

pytestmark = pytest.mark.pure

MACHINE = Machine("Some CPU", None, 2, 8_000_000_000, "Linux 6 x86_64", 0.5)
SETTING = Setting("lattice bench speed", MACHINE, {"mlx": "1"}, "m", {"format": "gguf"})
WEIGHTS = Weights(1_200_000, 1_000_000, 1_500_000, 500_000, 100.0)
LIMITS = MachineLimits(8e9, 10e9, 100e9, "a dream")
FACTS = Facts(1.5, 123_000_000, None, "sha256:0", WEIGHTS, LIMITS, "not told: this machine has no RAPL")


def trial(seconds: float, cached: int = 0, noisy: bool = False, tokens: int = 5, joules: float | None = None) -> Trial:
    """100 tokens in half a second, the first token at 0.6 s, then 4 in `seconds`."""
    times = tuple(0.6 + seconds * at / 4 for at in range(tokens))
    return Trial((RowTimes(100, cached, tokens, 2, 0.5, times),), Noise(1.0, 0.7, noisy), joules)


def record(*trials: Trial, prefix: str = "cold") -> dict[str, Any]:
    return speed_record(
        SETTING, SpeedPlan((100,), 5, trials=len(trials)), [Measured(Point(100, 5, prefix=prefix), trials)], FACTS
    )


def test_a_record_holds_rates_spread_memory_versions_and_every_trial() -> None:
    """Report 138: median, spread, memory and cache effects, in a form a program reads."""
    found = record(trial(1.0), trial(2.0, cached=50))
    assert found["figures"]["decode_tok_s"] == {
        "median": 3.0, "p5": 2.1, "p95": 3.9, "p99": 3.98, "low": 2.0, "high": 4.0, "count": 2,
    }  # fmt: skip
    assert found["figures"]["prefill_tok_s"]["median"] == 150.0
    assert (found["schema"], found["model_hash"], found["seed"]) == (2, "sha256:0", 0)
    assert (found["peak_memory_bytes"], found["model_bytes"], found["load_s"]) == (123_000_000, 1_200_000, 1.5)
    (point,) = found["points"]
    assert [one["decode_tok_s"] for one in point["trials"]] == [4.0, 2.0]
    assert (point["cached_tokens"], point["reasoning_tokens"], point["short_replies"]) == (50, 4, 0)
    assert set(found["figures"]) <= set(DEFINITIONS)
    assert json.loads(json.dumps(found)) == found | {"plan": found["plan"] | {
        name: list(value) for name, value in found["plan"].items() if isinstance(value, tuple)}}  # fmt: skip


def test_noisy_trials_are_marked_and_kept() -> None:
    found = record(trial(1.0), trial(2.0, noisy=True), trial(1.0))
    assert [one["noisy"] for one in found["points"][0]["trials"]] == [False, True, False]
    assert found["points"][0]["noisy_trials"] == 1
    assert found["figures"]["decode_tok_s"]["count"] == 3


def test_joules_are_there_only_where_the_machine_told_them() -> None:
    assert "joules_token" not in record(trial(1.0))["figures"]
    assert record(trial(1.0, joules=10.0))["figures"]["joules_token"]["median"] == 2.0


def test_a_share_of_the_limit_is_what_the_arithmetic_says() -> None:
    """1 MB of weights and 100 bytes of keys and values for 102.5 tokens, 4 times a second, of 10 GB/s."""
    room = Headroom(WEIGHTS, LIMITS, Point(100, 5))
    assert room.step_bytes == 1_010_250
    assert room.decode_percent(4.0) == pytest.approx(100 * 4 * 1_010_250 / 10e9)
    assert room.prefill_percent(200.0) == pytest.approx(100 * 200 * 3_000_000 / 100e9)
    two = Headroom(WEIGHTS, LIMITS, Point(100, 5, rows=2))  # the weights once, twice the context
    assert two.step_bytes == 1_020_500
    assert two.decode_percent(8.0) == pytest.approx(100 * 4 * 1_020_500 / 10e9)


def test_a_step_is_told_with_host_gpu_kernels_and_floor() -> None:
    told = replace(trial(1.0), rows=(replace(trial(1.0).rows[0], submits_s=(None, 0.001, 0.002, 0.004, 0.003)),))
    measured = Measured(Point(100, 5), [told], Load(42.5, 0.125))
    found = speed_record(SETTING, SpeedPlan((100,), 5, trials=1), [measured], FACTS)
    figures, (point,) = found["figures"], found["points"]
    medians = {name: figures[name]["median"] for name in figures if "step" in name}
    assert medians == {"step_ms": 250.0, "host_step_ms": 2.5, "gpu_step_ms": 125.0, "gpu_step_kernels": 42.5}
    assert point["floor_step_ms"] == pytest.approx(1000 * 1_010_250 / 10e9)
    assert set(figures) <= set(DEFINITIONS) and "submits_s" not in point["trials"][0]["rows"][0]
    silent = record(trial(1.0))["figures"]
    assert "step_ms" in silent and not {"host_step_ms", "gpu_step_ms", "gpu_step_kernels"} & set(silent)


def test_explain_shows_the_arithmetic_and_what_is_left_out() -> None:
    lines = list(Headroom(WEIGHTS, LIMITS, Point(100, 5)).explain(200_000.0, 4000.0))
    assert "tokens x 100 bytes of keys and values = 1.0 MB, which takes 0.101 ms" in lines[1]
    assert "1.0 MB of weights + 1 x 102 tokens" in lines[1]
    assert lines[2].endswith("= 4.0 GB/s, 40% of 10.0")
    assert lines[4].endswith("= 600.0 GFLOP/s, 600% of 100.0")
    assert lines[5].startswith("left out: attention's own operations")


def test_the_last_line_of_a_pipe_is_the_record_after_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = record(trial(1.0))
    show_speed(found, Outlet(), explain=False)
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["figures"] == found["figures"]
    assert out.splitlines()[0] == "100 + 5 tokens"
    assert "decode_tok_s" in out and "Some CPU" in err


def test_with_json_stdout_is_the_record_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    save = tmp_path / "kept.json"
    show_speed(record(trial(1.0)), Outlet(True, save), explain=True)
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    assert json.loads(line) == json.loads(save.read_text())
    assert "decode_tok_s" in err and "left out:" in err


def test_a_table_fits_in_60_columns(capsys: pytest.CaptureFixture[str]) -> None:
    show_speed(record(trial(0.00301), trial(0.00407), trial(0.0051)), Outlet(), explain=False)
    out = capsys.readouterr().out.splitlines()
    assert max(map(len, out[:-1])) <= 60


def test_a_warm_prefix_says_what_came_from_a_cache(capsys: pytest.CaptureFixture[str]) -> None:
    """Report 138: cache effects named."""
    show_speed(record(trial(1.0), prefix="warm"), Outlet(), explain=False)
    out, err = capsys.readouterr()
    assert "0 of 100 prompt tokens came from a cache" in out.splitlines()
    assert (
        "no prompt token came from a cache: this engine keeps none, so warm and edited are as cold" in err.splitlines()
    )


def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        Outlet(save=tmp_path / "none" / "kept.json").check()


@pytest.mark.parametrize(
    ("value", "shown"), [(34261.0, "34,261"), (999.94, "999.9"), (19.049, "19.05"), (0.44216, "0.4422")]
)
def test_figures_have_four_digits_and_no_exponent(value: float, shown: str) -> None:
    assert figure(value) == shown
