"""The golden numbers of fixtures/models as tests want them, and an engine that is asked for the same.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from lattice_cli.engine.backend import Emitted, Progress
from lattice_cli.engine.engine import Engine
from lattice_cli.engine.mlx_backend import MlxBackend
from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.engine.reply import Score
from lattice_cli.events import Failed
from lattice_cli.job import Job, Limits, Prompt, Sampling
from lattice_cli.kernels import install, native_choice
from lattice_cli.model.card import ModelSource
from lattice_cli.model.load import LoadedModel, load
from lattice_cli.settings import EngineSettings, Home

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
NAMES = tuple(sorted(path.parent.name for path in MODELS.glob("*/golden.json")))
CACHE = Path("~/.cache/lattice-tests").expanduser()  # where compiled kernels stay between runs

# The largest error of a logit against transformers in float32; docs/guides/parity.md states the same. The logits have a
# deviation of 8.
FLOAT32_ERROR = {"llama": 2e-4, "qwen3": 2e-4, "qwen3_5": 2e-3}
FAST_ERROR = {"llama": 0.1, "qwen3": 0.1, "qwen3_5": 0.01}


@dataclass(frozen=True, slots=True)
class Golden:
    """A prompt of ids alone. `last` are the logits (vocabulary,) at its end; `margins` of each token of `greedy`.

    `bfloat16_error` is the root mean square error of `last` that transformers has in bfloat16.
    """

    ids: tuple[int, ...]
    greedy: tuple[int, ...]
    margins: tuple[float, ...]
    bfloat16_error: float
    last: np.ndarray[Any, Any]

    def sure(self, error: float) -> int:
        """How many tokens of the reply come with any logits within `error`."""
        return next((at for at, margin in enumerate(self.margins) if margin <= 2 * error), len(self.greedy))


def goldens_of(name: str) -> list[Golden]:
    """By length: 1, 3, 63, 64, 65 and 257 tokens."""
    said = json.loads((MODELS / name / "golden.json").read_text(encoding="utf-8"))["prompts"]
    logits = load_file(MODELS / name / "golden.safetensors")
    return [
        Golden(
            tuple(one["ids"]),
            tuple(one["greedy"]),
            tuple(one["margins"]),
            one["bfloat16_error"],
            logits[f"logits.{at}"][-1],
        )
        for at, one in enumerate(said)
        if "prompt" not in one
    ]


def bound_of(name: str, mode: str) -> float:
    """The largest error of a logit that is float arithmetic, of a model on kernels."""
    stated = FAST_ERROR if mode == "fast" else FLOAT32_ERROR
    return next(error for family, error in reversed(stated.items()) if name.startswith(family))


def home_of(mode: str) -> Home:
    return Home(CACHE, CACHE / "models", kernels=mode)


@contextmanager
def loaded(name: str, mode: str, folder: Path | None = None) -> Iterator[LoadedModel]:
    """A model as the engine loads it, with the functions of its kernels in place; skips where those cannot be had."""
    home = home_of(mode)
    native = native_choice.choose(home)
    if mode != "off" and native.module is None:
        pytest.skip(native.reason)
    model = load(ModelSource(name, folder or MODELS / name, "folder"), home)
    if native.module is not None:
        install.put_functions(native.module)
    try:
        yield model
    finally:
        install.take_functions()


def logits_of(network: Any, ids: Sequence[int], chunk: int | None = None) -> np.ndarray[Any, Any]:
    """(tokens, vocabulary): of the whole text at once, or read into caches so many tokens at a time."""
    import mlx.core as mx

    from lattice_cli.model.network import make_caches

    if chunk is None:
        return np.array(network(mx.array([list(ids)]))[0].astype(mx.float32))
    caches, read = make_caches(network), []
    for start in range(0, len(ids), chunk):
        found = network(mx.array([list(ids[start : start + chunk])]), cache=caches)[0]
        read.append(np.array(found.astype(mx.float32)))
    return np.concatenate(read)


@dataclass(slots=True)
class Answer:
    """Ids of one row as the backend gave them, each with its score."""

    ids: list[int] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)


class AskedBackend(MlxBackend):
    """Writes down what it hands out."""

    def __init__(self, network: Any, chunk: int, prefix: PrefixCache | None) -> None:
        super().__init__(network, 8, chunk, prefix=prefix)
        self.answers: dict[str, Answer] = {}

    def advance(self) -> list[Progress | Emitted]:
        outcomes = super().advance()
        for outcome in outcomes:
            if isinstance(outcome, Emitted):
                answer = self.answers.setdefault(outcome.job_id, Answer())
                answer.ids.append(outcome.token_id)
                if outcome.score is not None:
                    answer.scores.append(outcome.score)
        return outcomes


class Asked:
    """An engine on a network: `ask` gives prompts to it all at once. `prefix` is what it keeps of prompts."""

    def __init__(self, model: LoadedModel, chunk: int = 512, prefix: PrefixCache | None = None) -> None:
        self._backend = AskedBackend(model.network, chunk, prefix)
        self.engine = Engine(model.card, self._backend, EngineSettings())

    def ask(self, goldens: Sequence[Golden], tokens: int = 32, name: str = "") -> list[Answer]:
        jobs = [greedy_job(f"{name}{at}", golden, tokens) for at, golden in enumerate(goldens)]
        for job in jobs:
            self.engine.add(job)
        self.run()
        return [self.taken(job.id) for job in jobs]

    def taken(self, job_id: str) -> Answer:
        return self._backend.answers.pop(job_id)

    def run(self) -> None:
        """To the end of everything."""
        for _ in range(5000):
            if self.engine.idle:
                return
            for event in self.engine.step():
                assert not isinstance(event, Failed), event.error
        raise AssertionError("no end in 5,000 steps")


def greedy_job(name: str, golden: Golden, tokens: int = 32) -> Job:
    """Its reply goes on through end tokens, and tells the 20 likeliest beside each."""
    limits = Limits(tokens, ignore_end=True)
    return Job(name, Prompt(golden.ids, ""), Sampling(temperature=0.0), limits, logprobs=20, reasoning_apart=False)


def score_error(golden: Golden, score: Score) -> float:
    """The largest error among the 20 likeliest of the first token, against log-softmax of the golden logits."""
    wide = golden.last.astype(np.float64)
    wanted = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    return max(abs(float(wanted[token]) - value) for token, value in score[1])
