"""Model parity: the committed tiny models agree with their golden numbers, and numbers that lie are found out.

Thread: any
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lattice_cli.bench.parity import Verdict
from lattice_cli.bench.parity_models import replay_greedy, replay_models
from lattice_cli.errors import BenchError
from lattice_cli.settings import Home

pytestmark = pytest.mark.tiny

FIXTURES = Path(__file__).parents[2] / "fixtures"
NAMES = [path.parent.name for path in (FIXTURES / "models").glob("*/golden.json")]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home", tmp_path / "home" / "models")


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A copy of the llama folder alone, to spoil."""
    shutil.copytree(FIXTURES / "models" / "llama", tmp_path / "models" / "llama")
    return tmp_path / "models"


def replay(models: Path, home: Home, case: str | None = None) -> list[Verdict]:
    return list(replay_models(models, home, case))


def spoil(models: Path, number: int, **values: Any) -> None:
    path = models / "llama" / "golden.json"
    said = json.loads(path.read_text())
    said["prompts"][number] |= values
    path.write_text(json.dumps(said))


def test_every_golden_prompt_agrees(home: Home) -> None:
    """Largest error of a logit: 2e-3 on logits of standard deviation 8; equal bit for bit where they were made."""
    verdicts = replay(FIXTURES / "models", home)
    words = {"llama": 4, "qwen3": 4, "qwen3_5": 4}  # prompts of words beside those of ids
    assert [verdict.case for verdict in verdicts] == [
        f"{name}/{at}" for name in sorted(NAMES) for at in range(words.get(name, 0) + 6)
    ]
    assert [(verdict.case, verdict.divergence) for verdict in verdicts if verdict.word != "agrees"] == []
    assert max(verdict.figures["logit error"] for verdict in verdicts) < 2e-3


def test_the_folders_are_small_and_say_where_their_numbers_come_from() -> None:
    for folder in (FIXTURES / "models").iterdir():
        if folder.is_dir():
            assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000
            said = json.loads((folder / "golden.json").read_text())
            assert said["recorded_from"].startswith("transformers ")
            assert min((prompt["margin"] for prompt in said["prompts"] if "prompt" in prompt), default=1) > 0.05


def test_one_prompt_or_one_model_can_be_named(home: Home) -> None:
    models = FIXTURES / "models"
    assert [verdict.case for verdict in replay(models, home, "qwen3/2")] == ["qwen3/2"]
    assert len(replay(models, home, "qwen3")) == 10


def test_a_logit_that_is_off_is_found_with_the_largest_error(golden: Path, home: Home) -> None:
    path = golden / "llama" / "golden.safetensors"
    arrays = load_file(path)
    arrays["logits.1"][2, 5] += np.float32(0.5)
    save_file(arrays, path)
    verdicts = replay(golden, home)
    assert [verdict.case for verdict in verdicts if verdict.word != "agrees"] == ["llama/1"]
    there = verdicts[1].divergence
    assert there is not None and (there.place, there.expected, there.got) == (
        "logits",
        "at most 0.002 away",
        "0.5 away",
    )
    assert verdicts[1].figures["logit error"] == pytest.approx(0.5, abs=1e-3)


def test_a_greedy_token_that_is_off_is_found_by_its_place(golden: Path, home: Home) -> None:
    kept = json.loads((golden / "llama" / "golden.json").read_text())["prompts"][0]["greedy"]
    spoil(golden, 0, greedy=[*kept[:5], kept[5] ^ 1, *kept[6:]])
    spoil(golden, 1, greedy=[])
    first, second = replay(golden, home)[:2]
    assert first.divergence is not None and first.divergence.place == "token 5"
    assert second.divergence is not None and (second.divergence.place, second.divergence.expected) == (
        "token 0",
        '"the end"',
    )


def test_a_reply_in_ids_is_held_to_its_sure_tokens_alone(golden: Path, home: Home) -> None:
    """A prompt of ids: a token whose margin float error could turn round may be another, and so may those after it."""
    path = golden / "llama" / "golden.json"
    said = json.loads(path.read_text())
    assert "prompt" not in said["prompts"][6]
    kept = said["prompts"][6]
    wrong = [*kept["greedy"][:9], kept["greedy"][9] ^ 1, *kept["greedy"][10:]]
    spoil(golden, 6, greedy=wrong)
    (verdict,) = replay(golden, home, "llama/6")
    there = verdict.divergence
    assert there is not None and there.place == "token 9"
    assert there.got.startswith(f"[{kept['greedy'][9]}, ") and there.expected.startswith(f"[{wrong[9]}, ")
    spoil(golden, 6, margins=[*kept["margins"][:9], 0.003, *kept["margins"][10:]])
    assert replay(golden, home, "llama/6")[0].word == "agrees"


def test_a_prompt_that_is_tokenized_otherwise_is_found(golden: Path, home: Home) -> None:
    ids = json.loads((golden / "llama" / "golden.json").read_text())["prompts"][2]["ids"]
    spoil(golden, 2, ids=[*ids[:3], ids[3] + 1, *ids[4:]], positions=[0, 1, 2])
    (verdict,) = replay(golden, home, "llama/2")
    assert verdict.divergence is not None and verdict.divergence.place == "prompt token 3"


def test_golden_numbers_that_cannot_be_read_are_one_sentence(golden: Path, home: Home) -> None:
    (golden / "llama" / "golden.json").write_text('{"tolerance": 1}')
    with pytest.raises(BenchError, match="cannot be read: Object missing required field"):
        replay(golden, home)


def test_a_model_that_is_not_pulled_is_skipped_with_how_to_get_it(home: Home) -> None:
    verdicts = list(replay_greedy(FIXTURES / "greedy", home, None))
    assert {verdict.word for verdict in verdicts} == {"skipped"}
    assert "lattice pull smollm2-135m" in (verdicts[0].skipped or "")
    assert len(verdicts) == 10
