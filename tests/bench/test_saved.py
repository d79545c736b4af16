"""Records that were saved: pages of them, and conditions on them.

Thread: any
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.bench import plots
from lattice_cli.bench.conditions import read_condition
from lattice_cli.bench.saved import read_saved
from lattice_cli.cli import run
from lattice_cli.errors import UsageError

pytestmark = pytest.mark.pure

MACHINE = {"processor": "Some <CPU>", "accelerator": None, "cores": 2, "system": "Linux", "load_1m": 0.5}


def figures(**medians: float) -> dict[str, Any]:
    return {name: {"median": value, "p5": value, "p95": value, "p99": value} for name, value in medians.items()}


def speed(folder: Path, name: str, *decodes: float, prefill: float = 1000) -> Path:
    points = [
        {
            "name": f"{512 * (at + 1)} + 64 tokens", "prompt_tokens": 512 * (at + 1), "tokens": 64, "noisy_trials": 1,
            "figures": figures(prefill_tok_s=prefill, decode_tok_s=decode),
            "limit_percent": {"prefill_tok_s": 50.0, "decode_tok_s": None},
        }
        for at, decode in enumerate(decodes)
    ]  # fmt: skip
    record = {"bench": "speed", "model": "m|n", "command": "lattice bench speed", "versions": {"mlx": "1"}}
    record |= {"machine": MACHINE, "points": points, "load_s": 2.0, "definitions": {"decode_tok_s": "tokens < seconds"}}
    file = folder / name
    file.write_text("a table of before\n" + json.dumps(record) + "\n")
    return file


def load(folder: Path, name: str, scale: float) -> Path:
    points = [
        {
            "clients": clients, "rate_s": None, "total_tok_s": 100 * scale, "goodput_s": 1, "requests": 1,
            "good_replies": 1, "errors": {}, "figures": figures(first_token_ms=scale * clients, gap_ms=2 * scale),
        }
        for clients in (1, 2)
    ]  # fmt: skip
    file = folder / name
    record = {"bench": "load", "model": "m", "command": "c", "versions": {}, "machine": MACHINE, "points": points}
    file.write_text(json.dumps(record))
    return file


@pytest.mark.parametrize(
    ("condition", "broken"),
    [
        (
            "decode_tok_s < 0.9 * {old}",
            ["decode_tok_s of new.json (1024 + 64 tokens) is 80, < 0.9 * 100 of old.json = 90"],
        ),
        ("decode_tps < 0.75 * {old}", []),
        ("decode_tok_s < {old}", ["decode_tok_s of new.json (1024 + 64 tokens) is 80, < 1 * 100 of old.json = 100"]),
        ("decode_tok_s > 119", ["decode_tok_s of new.json (512 + 64 tokens) is 120, > 119"]),
        ("prefill_tok_s < 10 * {old} decode_tok_s", []),
        ("load_s >= 2", ["load_s of new.json is 2, >= 2"]),
    ],
)
def test_a_condition_that_holds_ends_with_4_and_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], condition: str, broken: list[str]
) -> None:
    new, old = speed(tmp_path, "new.json", 120, 80), speed(tmp_path, "old.json", 100, 100)
    told = condition.replace("{old}", str(old))
    assert run(["bench", "report", str(new), "--fail-if", told]) == (4 if broken else 0)
    errors = capsys.readouterr().err.splitlines()
    assert errors == [f"error: {line}" for line in broken]


def test_a_name_after_the_file_is_that_metric_in_it(tmp_path: Path) -> None:
    new, old = speed(tmp_path, "new.json", 120), speed(tmp_path, "old.json", 100, prefill=500)
    (line,) = read_condition(f"decode_tok_s < 0.5 * {old}:prefill_tok_s").breaks([read_saved(new)])
    assert line == "decode_tok_s of new.json (512 + 64 tokens) is 120, < 0.5 * 500 of old.json = 250"


@pytest.mark.parametrize(
    "condition", ["decode_tok_s", "decode_tok_s < ", "decode_tok_s == 1", "decode_tok_s < old.txt", "< 1"]
)
def test_a_condition_that_is_none_is_a_usage_error(condition: str) -> None:
    with pytest.raises(UsageError):
        read_condition(condition)


def test_a_metric_that_nobody_has_is_no_condition_kept(tmp_path: Path) -> None:
    """A slip of the finger must not pass for ever."""
    new, old = speed(tmp_path, "new.json", 120), speed(tmp_path, "old.json", 1, 2, 3)
    with pytest.raises(UsageError, match="no record has `decode`"):
        list(read_condition("decode < 1").breaks([read_saved(new)]))
    long = speed(tmp_path, "long.json", 1, 1, 1, 1)
    with pytest.raises(UsageError, match="has no `decode_tok_s` for `2048"):
        list(read_condition(f"decode_tok_s < {old}").breaks([read_saved(long)]))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"bench": "else"}', '{"bench": "speed", "figures": {}}'])
def test_a_file_without_a_record_is_told(tmp_path: Path, content: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(content)
    with pytest.raises(UsageError):
        read_saved(file)


def test_markdown_has_a_table_of_points_and_how_to_measure_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "report", str(speed(tmp_path, "new.json", 120, 80))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "## speed: m\\|n, new"
    assert "| 1024 + 64 tokens | 1,000 (1,000 .. 1,000) | 80 (80 .. 80) |" in lines
    assert "| 512 + 64 tokens | 50% | - | 1 |" in lines
    assert "- command: `lattice bench speed`" in lines
    assert "- machine: Some &lt;CPU>, 2 cores, Linux, load 0.5 before" in lines


class Page(HTMLParser):
    """Tags, and whatever would be fetched from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value for name, value in attributes if name in ("src", "href") and value and value[0] != "#"]


@pytest.mark.wire  # matplotlib takes 0.3 s to import
def test_a_page_needs_nothing_beside_it_and_follows_light_and_dark(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = speed(tmp_path, "new.json", 120, 80)
    assert run(["bench", "report", str(file), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "report.html").read_text()
    page = Page(text)
    assert page.tags.count("svg") == 2 and "table" in page.tags and "script" not in page.tags
    assert page.fetched == []
    assert "color-scheme: light dark" in text and "currentColor" in text
    assert plots.INK not in text and "Some <CPU>" not in text
    assert (tmp_path / "out" / "report.md").read_text().startswith("## speed")
    assert not re.search(r"\d{4}-\d\d-\d\dT", text)  # the same records make the same page


@pytest.mark.wire  # matplotlib takes 0.3 s to import
def test_servers_under_load_are_drawn_side_by_side(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [str(load(tmp_path, name, scale)) for name, scale in (("ours.json", 1), ("theirs.json", 3))]
    assert run(["bench", "report", *files, "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "report.html").read_text()
    assert "side by side" in text and "ours" in text and "theirs" in text
    for name in ("total_tok_s", "first_token_ms", "gap_ms"):
        drawn = (tmp_path / "out" / f"{name}.svg").read_text()
        assert drawn.startswith("<svg color=") and ">ours<" in drawn and ">theirs<" in drawn
        assert f"({name}.svg)" in (tmp_path / "out" / "report.md").read_text()


def test_without_matplotlib_there_is_a_page_without_figures_and_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "can_draw", lambda: False)
    assert run(["bench", "report", str(speed(tmp_path, "new.json", 1, 2)), "--out", str(tmp_path / "out")]) == 0
    assert "svg" not in Page((tmp_path / "out" / "report.html").read_text()).tags
    assert "pip install 'lattice-cli[plots]'" in capsys.readouterr().err
