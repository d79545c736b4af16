"""`lattice bench parity` from the command line: what is printed where, and how it ends.

Thread: any
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.bench.parity import Verdict, counts
from lattice_cli.bench.parity_report import footnotes, record, show
from lattice_cli.bench.parity_rule import Divergence
from lattice_cli.cli import run
from tests.bench.stub import refuse, serving

pytestmark = pytest.mark.wire

ASK: dict[str, Any] = {"body": {"messages": [{"role": "user", "content": "hi"}]}}
SCRIPT = {"name": "echo", "replies": [{"tokens": ["hello"]}]}


def says(text: str) -> dict[str, Any]:
    return {"fields": [{"at": "/choices/0/message/content", "equals": text}]}


def fixtures(tmp_path: Path, *cases: dict[str, Any], suite: str = "openai") -> str:
    folder = tmp_path / "parity"
    folder.mkdir(exist_ok=True)
    for name in ("lattice-0.5.0", "lattice-0.6.1", "openai"):
        (folder / f"{name}.jsonl").write_text("")
    (folder / f"{suite}.jsonl").write_text("\n".join(json.dumps(case) for case in cases))
    return str(tmp_path)


RIGHT = {"name": "right", "script": SCRIPT, "request": ASK, "expect": says("hello")}
WRONG = {"name": "wrong", "script": SCRIPT, "request": ASK, "expect": says("goodbye"), "note": "made up"}
ANY = {"name": "any", "request": ASK, "expect": {"status": 418}}


def test_all_that_agree_end_with_0_and_a_table_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fixtures(tmp_path, RIGHT)
    assert run(["bench", "parity", "--suite", "openai", "--fixtures", folder]) == 0
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines()] == [
        ["suite", "agrees", "differs", "skipped"],
        ["openai", "1", "0", "0"],
    ]


def test_one_that_differs_ends_with_4_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fixtures(tmp_path, RIGHT, WRONG)
    assert run(["bench", "parity", "--suite", "openai", "--fixtures", folder]) == 4
    said = capsys.readouterr()
    (row,) = [line for line in said.out.splitlines() if " wrong " in line]
    assert row.split() == ["openai", "wrong", "differs", "/choices/0/message/content", '"goodbye"', '"hello"']
    assert " right " not in said.out
    assert said.err.splitlines()[-1] == "error: 1 of 2 cases differ"


def test_json_is_the_last_line_of_stdout_and_the_table_is_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fixtures(tmp_path, RIGHT, WRONG)
    assert run(["bench", "parity", "--suite", "openai", "--json", "--fixtures", folder]) == 4
    said = capsys.readouterr()
    (line,) = said.out.splitlines()
    found = json.loads(line)
    assert (found["bench"], found["suites"]) == ("parity", {"openai": {"agrees": 1, "differs": 1, "skipped": 0}})
    for case in found["cases"]:
        assert case.pop("seconds") >= 0
    assert found["cases"] == [
        {"suite": "openai", "case": "right", "verdict": "agrees"},
        {
            "suite": "openai",
            "case": "wrong",
            "verdict": "differs",
            "place": "/choices/0/message/content",
            "expected": '"goodbye"',
            "got": '"hello"',
            "note": "made up",
        },
    ]
    assert "differs" in said.err


def test_one_case_can_be_named_and_every_case_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fixtures(tmp_path, RIGHT, WRONG)
    command = ["bench", "parity", "--suite", "openai", "--fixtures", folder]
    assert run([*command, "--case", "right", "--verbose"]) == 0
    assert "right" in capsys.readouterr().out
    assert run([*command, "--case", "rihgt"]) == 4
    assert "no suite has a case `rihgt`" in capsys.readouterr().err


def test_another_server_is_asked_what_it_can_be_asked_and_the_rest_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [
        ANY,
        RIGHT,
        {**ANY, "name": "flags", "flags": ["--max-rows", "1"]},
        {**ANY, "name": "p", "policy": "openai"},
    ]
    folder = fixtures(tmp_path, *cases)
    with serving(refuse(418, "{}")) as stub:
        assert run(["bench", "parity", "--url", stub.url, "--fixtures", folder]) == 0
    assert len(stub.bodies) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].split() == ["openai", "1", "0", "3"]
    assert said.err == "openai: 3 skipped: it needs a server of its own\n"


def test_a_server_that_is_asked_and_differs_ends_with_4(tmp_path: Path) -> None:
    with serving(refuse(200, "{}")) as stub:
        assert run(["bench", "parity", "--url", f"{stub.url}/v1", "--fixtures", fixtures(tmp_path, ANY)]) == 4


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--suite", "lattice"], 2, "there is no suite `lattice`"),
        (["--suite", "models", "--url", "http://127.0.0.1:1"], 2, "asks the engine of this process"),
        (["--url", "nowhere"], 2, "`nowhere` is no http address"),
    ],
)
def test_an_option_that_cannot_be_is_a_usage_error(
    arguments: list[str], status: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "parity", *arguments]) == status
    assert sentence in capsys.readouterr().err


def test_a_malformed_line_ends_with_4_and_names_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fixtures(tmp_path, RIGHT, {**WRONG, "expect": {"statsu": 200}})
    assert run(["bench", "parity", "--fixtures", folder]) == 4
    path = tmp_path / "parity" / "openai.jsonl"
    assert capsys.readouterr().err.startswith(f"error: `{path}` line 2: Object contains unknown field `statsu`")


def test_a_server_that_does_not_start_is_a_divergence_with_its_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other groups go on."""
    broken = {**RIGHT, "name": "broken", "script": {"replies": 5}}
    assert run(["bench", "parity", "--suite", "openai", "--fixtures", fixtures(tmp_path, broken, RIGHT)]) == 4
    out = capsys.readouterr().out
    (row,) = [line for line in out.splitlines() if " broken " in line]
    assert "a server did not start: " in row and "malformed" in row
    assert out.splitlines()[-1].split() == ["openai", "1", "1", "0"]


def test_a_line_that_never_comes_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        {"do": "send", "name": "a", "request": ASK},
        {"do": "expect", "of": "a", "expect": says("hello")},
        {"do": "line", "fields": [{"at": "/status", "equals": 200}, {"at": "/tokens", "equals": 9}]},
    ]
    case = {"name": "lined", "script": SCRIPT, "steps": steps}
    assert run(["bench", "parity", "--suite", "openai", "--fixtures", fixtures(tmp_path, case)]) == 4
    (row,) = [line for line in capsys.readouterr().out.splitlines() if " lined " in line]
    assert row.split() == ["openai", "lined", "differs", "line", "/tokens", "9", "1"]


def test_a_report_tells_skips_and_the_largest_figure(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = [
        Verdict("models", "llama/0", figures={"logit error": 2e-6}),
        Verdict("models", "llama/1", Divergence("token 3", '" a"', '" b"'), figures={"logit error": 3e-5}),
        Verdict("greedy", "m/0", skipped="it is not here"),
        Verdict("greedy", "m/1", skipped="it is not here"),
    ]
    show(verdicts, to_stderr=False, every_case=True)
    footnotes(verdicts)
    said = capsys.readouterr()
    assert "logit error 2e-06" in said.out
    assert said.err == "greedy: 2 skipped: it is not here\nmodels: largest logit error 3e-05\n"
    assert counts(verdicts)["greedy"] == {"agrees": 0, "differs": 0, "skipped": 2}
    assert record(verdicts, "c", {}, 1.0)["cases"][0]["figures"] == {"logit error": 2e-6}
