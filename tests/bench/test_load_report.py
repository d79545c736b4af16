"""What a measured server leaves behind.

Thread: any
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice_cli.bench.crowd import Goal, LoadResult, Pace
from lattice_cli.bench.load_report import DEFINITIONS, LoadPoint, load_record, show_load
from lattice_cli.bench.machine import Machine
from lattice_cli.bench.noise import Noise
from lattice_cli.bench.reading import Answer, Miss
from lattice_cli.bench.record import Outlet, Setting
from lattice_cli.bench.strain import Strain

pytestmark = pytest.mark.pure

SETTING = Setting("lattice bench load", Machine("Some CPU", None, 2, 8, "Linux", 0.5), {"mlx": "1"}, "m", {"url": "u"})
PLAN = {"max_tokens": 9, "warmups": 1, "seed": 7, "tokenizer": False}


def answer(tokens: int, last_s: float, doubt: str | None = None) -> Answer:
    return Answer(10, 2, tokens, 2.0, last_s, last_s + 1, (last_s - 2.0,), "length", doubt=doubt)


def record(result: LoadResult, goal: Goal | None = None, strain: Strain | None = None) -> dict[str, Any]:
    points = [LoadPoint(Pace(clients, 2), result, Noise(1.0, 0.5, False)) for clients in (2, 4)]
    return load_record(SETTING, PLAN, points, goal or Goal(), strain)


def test_a_record_counts_failures_by_kind_and_rates_from_answers() -> None:
    """Report 137: a failure is told, and no rate holds it."""
    misses = (
        Miss("the reply is empty", "empty"),
        Miss("HTTP 500: boom", "HTTP 500"),
        Miss("HTTP 500: bang", "HTTP 500"),
    )
    found = record(LoadResult((answer(9, 4.0), answer(5, 4.0)), misses, wall_s=7.0), Goal(2000, 250))
    (first, second) = found["points"]
    assert first["errors"] == {"empty": 1, "HTTP 500": 2}
    assert (first["requests"], first["total_tok_s"], second["clients"]) == (5, 2.0, 4)
    assert first["figures"]["decode_tok_s"]["median"] == 3.0
    assert (first["good_replies"], first["goodput_s"]) == (1, 1 / 7)  # 250 ms a token, and 500
    assert {*first["figures"], "total_tok_s", "goodput_s"} <= set(DEFINITIONS)
    assert first["trials"][0]["gaps_s"] == (2.0,)


def test_a_usage_that_cannot_be_true_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    lied = answer(9, 4.0, "usage says 9 tokens, and the text has 4")
    show_load(record(LoadResult((lied, answer(9, 4.0)), (), 7.0)), Outlet())
    assert "1 of 2 cannot be believed: usage says 9 tokens, and the text has 4" in capsys.readouterr().out.splitlines()


def test_the_cost_of_a_cancel_is_what_the_next_one_waits_beyond_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    strain = Strain(4, (0.1, 0.2, 0.3), (0.5,), (0.6, 0.7, 0.9))
    found = record(LoadResult((answer(9, 4.0),), (), 7.0), strain=strain)
    assert found["strain"]["cancel_ms"] == pytest.approx(500)
    show_load(found, Outlet())
    assert "a client who leaves costs the next one 500 ms" in capsys.readouterr().out.splitlines()


def test_the_last_line_of_a_pipe_is_the_record_and_failures_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    show_load(record(LoadResult((), (Miss("HTTP 500: boom", "HTTP 500"),), 1.0)), Outlet())
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["points"][0]["failures"] == {"HTTP 500: boom": 1}
    assert "1 of 1 failed: HTTP 500: boom" in out.splitlines()
    assert "tokens are counted by the server's usage alone; --tokenizer counts the text, too" in err.splitlines()
