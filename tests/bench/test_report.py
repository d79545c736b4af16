"""What a measurement leaves behind: a table for people, one line of JSON for programs.

Thread: any
"""

from __future__ import annotations

import json

import pytest

from lattice_cli.bench.crowd import LoadPlan, LoadResult
from lattice_cli.bench.machine import Machine
from lattice_cli.bench.reading import Answer, Miss
from lattice_cli.bench.report import Setting, figure, load_record, show, speed_record
from lattice_cli.bench.speed import SpeedPlan, Trial

pytestmark = pytest.mark.pure

MACHINE = Machine("Some CPU", None, 2, 8_000_000_000, "Linux 6 x86_64", 0.5)
SETTING = Setting("lattice bench speed", MACHINE, {"mlx": "1"}, "m", {"format": "gguf"})


def answer(tokens: int, last_s: float) -> Answer:
    return Answer(10, 2, tokens, 2.0, last_s, last_s + 1, (last_s - 2.0,), "length")


def test_a_speed_record_holds_rates_spread_memory_and_definitions() -> None:
    """Report 138: median, spread, memory and cache effects, in a form a program reads."""
    trials = [Trial(100, 0, 9, 0.5, 0.6, 1.0), Trial(100, 50, 5, 0.5, 0.7, 1.0)]
    record = speed_record(SETTING, SpeedPlan(100, 9, 2, 1, 7), trials, 123)
    assert record["figures"] == {
        "prefill_tok_s": {"median": 150.0, "q1": 125.0, "q3": 175.0, "low": 100.0, "high": 200.0, "count": 2},
        "decode_tok_s": {"median": 6.0, "q1": 5.0, "q3": 7.0, "low": 4.0, "high": 8.0, "count": 2},
        "first_token_ms": {"median": 650.0, "q1": 625.0, "q3": 675.0, "low": 600.0, "high": 700.0, "count": 2},
    }
    assert (record["model"], record["seed"], record["peak_memory_bytes"]) == ("m", 7, 123)
    assert (record["cached_tokens"], record["short_runs"]) == (50, 1)
    assert set(record["definitions"]) == {*record["figures"], "peak_memory_bytes"}
    assert record["machine"]["processor"] == "Some CPU"


def test_a_load_record_counts_failures_by_reason_and_rates_from_answers() -> None:
    """Report 137: a failure is told, and no rate holds it."""
    plan = LoadPlan("m", 10, 9, clients=2, trials=2, warmups=0, seed=1)
    result = LoadResult((answer(9, 4.0), answer(5, 4.0)), (Miss("the reply is empty"),) * 2, wall_s=7.0)
    record = load_record(SETTING, plan, result)
    assert record["failures"] == {"the reply is empty": 2}
    assert (record["requests"], record["total_tok_s"], record["short_runs"]) == (4, 2.0, 1)
    assert record["figures"]["decode_tok_s"]["median"] == 3.0
    assert set(record["definitions"]) == {*record["figures"], "total_tok_s"}


def test_the_last_line_of_stdout_is_the_record_and_talk_is_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    record = load_record(SETTING, LoadPlan("m", 10, 9, 1, 1, 0, 1), LoadResult((), (Miss("HTTP 500: boom"),), 1.0))
    show(record)
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [record]
    assert "1 of 1 failed: HTTP 500: boom" in err.splitlines()


@pytest.mark.parametrize(
    ("value", "shown"), [(34261.0, "34,261"), (999.94, "999.9"), (19.049, "19.05"), (0.44216, "0.4422")]
)
def test_figures_have_four_digits_and_no_exponent(value: float, shown: str) -> None:
    assert figure(value) == shown
