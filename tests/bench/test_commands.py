"""`lattice bench speed` and `load` from the command line: what comes out where, and how they end.

Thread: any
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.cli import run
from lattice_cli.engine import measure_limits
from tests.bench.stub import finish, refuse, serving, stream, text, usage
from tests.tiny import tiny_config, write_tiny_folder

pytestmark = pytest.mark.tiny


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of its own, and limits measured on a few bytes."""
    monkeypatch.setenv("LATTICE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(measure_limits, "BUFFER_BYTES", 1 << 16)
    monkeypatch.setitem(measure_limits.GEMM_SIZE, "cpu", 32)


def record_of(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    out, err = capsys.readouterr()
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found, err


SHORT = ("--prompt-tokens", "40,20", "--tokens", "6", "--trials", "2", "--warmups", "1", "--json")


def test_speed_of_a_config_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Needs no folder and no tokenizer; every combination is a point with all of its trials."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(tiny_config("qwen3")))
    more = ("--rows", "1,2", "--grammar", "free,json", "--prefix", "cold,edited", "--group", "32")
    assert run(["bench", "speed", "--random-weights", str(config), *SHORT, *more]) == 0
    record, err = record_of(capsys)
    assert [list(map(point.get, ("prompt_tokens", "rows", "grammar", "prefix"))) for point in record["points"]] == [
        [tokens, rows, grammar, prefix]
        for tokens in (40, 20)
        for rows in (1, 2)
        for grammar in ("free", "json")
        for prefix in ("cold", "edited")
    ]
    assert {len(point["trials"]) for point in record["points"]} == {2}
    assert {
        row["completion_tokens"] for point in record["points"] for one in point["trials"] for row in one["rows"]
    } == {6}
    assert (record["quantization"], record["model_hash"]) == ("4-bit group 32", None)
    assert record["points"][0]["limit_percent"]["decode_tok_s"] > 0
    assert record["load_s"] > 0 and record["model_bytes"] > 0
    assert "prompt tokens came from a cache" in err
    for point in record["points"]:
        prompts = 2 * point["rows"]  # cold is cold but for a number's first digits
        assert (point["cached_tokens"] > 5 * prompts) == (point["prefix"] == "edited")


def test_speed_of_a_folder_beside_mlx_lm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    assert run(["bench", "speed", "--model", str(folder), *SHORT, "--reference", "mlx-lm", "--explain"]) == 0
    record, err = record_of(capsys)
    assert [(point["prompt_tokens"], point["engine"]) for point in record["points"]] == [
        (40, "lattice"), (40, "mlx-lm"), (20, "lattice"), (20, "mlx-lm"),
    ]  # fmt: skip
    assert record["model_hash"].startswith("sha256:")
    assert "a decode step moves" in err


def script(folder: Path) -> str:
    file = folder / "ticks.json"
    file.write_text(json.dumps({"replies": [{"tokens": ["tick ", "tack "], "then": "repeat"}]}))
    return f"script:{file}"


def test_speed_of_a_script_has_no_limit_and_loads_no_mlx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "speed", "--model", script(tmp_path), *SHORT]) == 0
    record, _ = record_of(capsys)
    assert record["limits"] == {"machine": None, "weights": None}
    assert record["energy"].startswith(("not told", "RAPL"))


@pytest.mark.parametrize(
    ("words", "param"),
    [
        (["--rows", "1,,2"], "--rows"),
        (["--rows", "0"], "--rows"),
        (["--prompt-tokens", "512,x"], "--prompt-tokens"),
        (["--prompt-tokens", "9000"], "--prompt-tokens"),
        (["--grammar", "xml"], "--grammar"),
        (["--prefix", "lukewarm"], "--prefix"),
        (["--reference", "vllm"], "--reference"),
        (["--reference", "mlx-lm"], "script"),
        (["--dtype", "int3"], "--dtype"),
        (["--random-weights", "config.json"], "--random-weights"),
        (["--save", "/no/such/folder/file"], "--save"),
    ],
)
def test_an_option_that_cannot_be_used_is_told_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], param: str
) -> None:
    assert run(["bench", "speed", "--model", script(tmp_path), *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert param in line


ONE_MINUTE = ("--prompt-tokens", "20", "--tokens", "3", "--trials", "2", "--json")


def test_load_measures_every_number_of_clients(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(stream(text("a "), text("b "), text("c"), finish(), usage(20, 3))) as stub:
        assert run(["bench", "load", "--url", stub.url, "--clients", "1,3", *ONE_MINUTE, "--api-key", "secret"]) == 0
    record, _ = record_of(capsys)
    assert [(point["clients"], point["requests"]) for point in record["points"]] == [(1, 2), (3, 6)]
    assert record["strain"]["streams"] == 3
    assert "secret" not in json.dumps(record)


def test_load_for_a_while_and_at_a_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    words = ["--dataset", str(data), "--no-strain", "--ignore-end"]
    with serving(stream(text("a "), text("b "), text("c"), finish(), usage(20, 3))) as stub:
        assert run(["bench", "load", "--url", stub.url, "--duration", "0.2", *words, *ONE_MINUTE]) == 0
        closed, _ = record_of(capsys)
        assert run(["bench", "load", "--url", stub.url, "--rate", "100", "--clients", "4", *words, *ONE_MINUTE]) == 0
        opened, _ = record_of(capsys)
    assert closed["points"][0]["requests"] >= 1
    assert closed["plan"]["dataset"] == "data.jsonl"
    assert (opened["points"][0]["rate_s"], opened["points"][0]["requests"]) == (100, 8)
    assert {body["messages"][0]["content"] for body in stub.bodies} == {"one", "two"}
    assert all(body["ignore_eos"] is True for body in stub.bodies)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (3, "error: the server's usage cannot be true in 2 of 2 replies: usage says 3 tokens, and the text has 20"),
        (20, None),
    ],
)
def test_a_server_that_lies_about_usage_makes_the_exit_status_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], told: int, said: str | None
) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    frames = [text("x") for _ in range(20)]
    with serving(stream(*frames, finish(), usage(20, told))) as stub:
        words = ["--tokenizer", str(folder), "--no-strain", "--prompt-tokens", "20", "--tokens", "30", "--trials", "2"]
        assert run(["bench", "load", "--url", stub.url, *words, "--json"]) == (4 if said else 0)
    record, err = record_of(capsys)
    assert record["points"][0]["own_tokens"] == 40
    assert said is None or said in err.splitlines()


def test_failures_make_the_exit_status_4(capsys: pytest.CaptureFixture[str]) -> None:
    """Report 137."""
    with serving(refuse(500, "boom")) as stub:
        assert run(["bench", "load", "--url", stub.url, *ONE_MINUTE]) == 4
    assert "error: the server does not answer: HTTP 500: boom" in capsys.readouterr().err.splitlines()
