"""lm-evaluation-harness against a real server: a hundred questions, by likelihood and by writing; and mlx-lm's own LM.

lm_eval is not in the dev extra: it brings thirty packages (pandas, pyarrow, scikit-learn) for one slow test. Install
`lm_eval[api]` beside lattice to run it.

Thread: any
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.process import ROOT, Process

lm_eval = pytest.importorskip("lm_eval")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

FOLDER = ROOT / "fixtures" / "models" / "llama"
TASKS = ROOT / "fixtures" / "lm_eval"
QUESTIONS = 100


@pytest.fixture(autouse=True, scope="module")
def offline() -> Iterator[None]:
    """The harness shall ask no hub. Only while these tests run: others ask a stub of one."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            patch.setenv(name, "1")
        yield


def evaluate(model: Any, task: str, **arguments: Any) -> dict[str, Any]:
    """What the harness makes of one task of ours."""
    import lm_eval.models  # its names are registered when the first model is looked for, unless another came before
    import yaml
    from lm_eval.tasks import TaskManager

    config = yaml.safe_load((TASKS / f"{task}.yaml").read_text())
    config["dataset_kwargs"] = {"data_files": {"test": str(TASKS / "questions.jsonl")}}
    manager = TaskManager(include_defaults=False)
    told: dict[str, Any] = lm_eval.simple_evaluate(
        model=model, tasks=[config], task_manager=manager, log_samples=True, bootstrap_iters=0, **arguments
    )
    return told


def likelihoods(told: dict[str, Any]) -> list[tuple[float, bool]]:
    """Of every answer of every question, in order."""
    samples = sorted(told["samples"]["lattice_choose"], key=lambda sample: sample["doc_id"])
    assert len(samples) == QUESTIONS
    pairs = [pair[0] for sample in samples for pair in sample["resps"]]
    return [(float(score), bool(greedy)) for score, greedy in pairs]


def arguments(port: int, path: str) -> dict[str, Any]:
    return {
        "model": "llama",
        "base_url": f"http://127.0.0.1:{port}{path}",
        "tokenizer": str(FOLDER),
        "tokenizer_backend": "huggingface",
        "num_concurrent": 2,
        "max_retries": 1,
        "max_length": 512,
        "eos_string": "<|im_end|>",
    }


def test_a_hundred_questions_by_likelihood_are_mlx_lms_own(tmp_path: Path) -> None:
    """local-completions sends token ids with `echo`, `logprobs` 1 and `max_tokens` 1, and takes off the last entry: a
    reply that ends at once must have one, too.
    """
    from mlx_lm.evaluate import MLXLM

    with Process(tmp_path, "--model", str(FOLDER), "--port", "0", "--max-pending", "64") as process:
        port = process.port()
        ours = evaluate("local-completions", "choose", model_args=arguments(port, "/v1/completions"))
    theirs = evaluate(MLXLM(str(FOLDER), use_chat_template=False), "choose")
    assert ours["results"]["lattice_choose"]["acc,none"] == theirs["results"]["lattice_choose"]["acc,none"]
    pairs = list(zip(likelihoods(ours), likelihoods(theirs), strict=True))
    assert len(pairs) == 4 * QUESTIONS
    assert max(abs(mine - other) for (mine, _), (other, _) in pairs) < 5e-4
    assert all(mine == other for (_, mine), (_, other) in pairs)


@pytest.mark.parametrize(
    ("model", "path", "chat"),
    [("local-chat-completions", "/v1/chat/completions", True), ("local-completions", "/v1/completions", False)],
)
def test_a_hundred_questions_are_answered_in_writing(tmp_path: Path, model: str, path: str, chat: bool) -> None:
    with Process(tmp_path, "--model", str(FOLDER), "--port", "0", "--max-pending", "64") as process:
        told = evaluate(model, "write", model_args=arguments(process.port(), path), apply_chat_template=chat)
    samples = told["samples"]["lattice_write"]
    assert len(samples) == QUESTIONS
    assert all(isinstance(sample["resps"][0][0], str) for sample in samples)
    assert 0.0 <= told["results"]["lattice_write"]["exact_match,none"] <= 1.0
