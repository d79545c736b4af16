"""Our engine beside a server: the same prompts, and where the replies part.

Thread: any
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.bench.parity_against import Beside, Parting, part
from lattice_cli.cli import run
from lattice_cli.engine.scripted import open_script
from lattice_cli.events import TokenScore
from lattice_cli.model.card import ModelCard, ModelSource
from tests.bench.stub import finish, serving, stream, text, usage

pytestmark = pytest.mark.wire

# Our tokens, each with the likeliest beside it; the last is the end.
SCORES = [
    TokenScore(1, b"a", -0.1, ((b"a", -0.1), (b"x", -2.6))),
    TokenScore(2, "é".encode(), -0.5, (("é".encode(), -0.5), (b"b", -0.75), (b"c", -1.0))),
    TokenScore(3, b"", -0.2, ((b"", -0.2), (b"d", -3.2))),
]


@pytest.fixture
def card(tmp_path: Path) -> ModelCard:
    script = tmp_path / "a.json"
    script.write_text(json.dumps({"replies": [{"tokens": ["x"]}]}))
    return open_script(ModelSource("a", script, "script"), None)[0]


def test_the_same_text_has_no_parting(card: ModelCard) -> None:
    assert part(card, SCORES, "aé", ended=True, cut=False) is None


@pytest.mark.parametrize(
    ("theirs", "token", "margin", "behind"),
    [
        ("xé", 0, 2.5, 2.5),  # our second choice
        ("ac", 1, 0.25, 0.5),  # our third: the margin is between our own two, and theirs lies behind it
        ("aq", 1, 0.25, None),  # none that we thought likely
        ("aéd", 2, 3.0, 3.0),  # we ended, they went on
    ],
)
def test_the_first_differing_token_is_told_with_our_margin(
    card: ModelCard, theirs: str, token: int, margin: float, behind: float | None
) -> None:
    found = part(card, SCORES, theirs, ended=True, cut=False)
    assert found is not None
    assert (found.token, found.margin) == (token, pytest.approx(margin))
    assert found.behind == (None if behind is None else pytest.approx(behind))


def test_a_reply_that_was_cut_by_its_length_has_not_ended(card: ModelCard) -> None:
    """Their tokens may be longer, so that fewer of ours are there; that is no difference. An end would be."""
    assert part(card, SCORES, "a", ended=True, cut=True) is None
    found = part(card, SCORES, "a", ended=True, cut=False)
    assert found is not None
    assert (found.token, found.theirs) == (1, "")


@pytest.mark.parametrize(
    ("parting", "word"),
    [
        (None, "same"),
        (Parting(1, 0.1, 0.3, "a", "b"), "near tie"),
        (Parting(1, 0.1, 0.7, "a", "b"), "differs"),
        (Parting(1, 0.1, None, "a", "b"), "differs"),
    ],
)
def test_a_near_tie_is_theirs_within_the_margin_of_ours(parting: Parting | None, word: str) -> None:
    assert Beside(0, "", 3, (1, 1), parting).word(0.5) == word


def against(folder: Path, reply: str, *more: str) -> tuple[int, dict[str, Any]]:
    script, prompts, save = folder / "ours.json", folder / "prompts.jsonl", folder / "record.json"
    script.write_text(json.dumps({"replies": [{"tokens": ["hello", " world"]}]}))
    prompts.write_text('{"prompt": "hi"}\n')
    frames = (*(text(word) for word in reply.split("|")), finish("stop"), usage(9, 2))
    with serving(stream(*frames)) as stub:
        words = ["bench", "parity", "--against", stub.url, "--model", f"script:{script}", "--prompts", str(prompts)]
        status = run([*words, "--save", str(save), *more])
    assert stub.bodies[0]["temperature"] == 0
    assert stub.bodies[0]["messages"] == [{"role": "user", "content": "hi"}]
    return status, json.loads(save.read_text())


def test_the_command_agrees_with_0_and_differs_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, record = against(tmp_path, "hello| wor|ld")
    assert (status, record["prompts"][0]["verdict"]) == (0, "same")
    status, record = against(tmp_path, "hello| there", "--json")
    assert (status, record["prompts"][0]["verdict"]) == (4, "differs")
    assert record["prompts"][0]["parting"]["token"] == 1
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1]) == record
    assert "error: 1 of 1 replies differ" in err.splitlines()
    assert "so the templates differ" in err
