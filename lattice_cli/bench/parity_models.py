"""Model parity: tiny models with golden numbers, and the greedy answers of a real one, through our engine.

Token ids of the rendered prompt, the largest error of a logit, the first token that differs. The folders of golden
numbers are made by fixtures/make_models.py and make_golden.py.

Thread: any
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lattice_cli.bench.parity import GREEDY, MODELS, Verdict
from lattice_cli.bench.parity_engine import AskedEngine
from lattice_cli.bench.parity_rule import Divergence
from lattice_cli.errors import BenchError, ModelNotFound
from lattice_cli.model.card import ModelSource
from lattice_cli.model.locate import locate
from lattice_cli.settings import Home

if TYPE_CHECKING:
    import numpy as np


class Golden(msgspec.Struct, frozen=True):
    """One prompt and what another engine made of it: logits at some positions, and the reply.

    A prompt without words is ids alone. Its reply has all its tokens, ends among them, and `margins` says for each how
    far the second choice was: where that is within twice the tolerance, another token is no fault.
    """

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    greedy: tuple[int, ...]
    margins: tuple[float, ...] = ()
    prompt: str | None = None

    def sure_tokens(self, tolerance: float) -> int:
        """How many tokens of the reply any engine must give that is within the tolerance."""
        close = (at for at, margin in enumerate(self.margins) if margin <= 2 * tolerance)
        return next(close, len(self.greedy))


class GoldenFile(msgspec.Struct, frozen=True):
    """`tolerance` is the largest error of a logit that is float arithmetic and no fault."""

    recorded_from: str
    tolerance: float
    prompts: tuple[Golden, ...]


class GreedyLine(msgspec.Struct, frozen=True):
    prompt: str
    prompt_tokens: int
    ids: tuple[int, ...]


def replay_models(folder: Path, home: Home, case: str | None) -> Iterator[Verdict]:
    """A verdict for each golden prompt of each folder; cases are called `NAME/NUMBER`. Raises: BenchError."""
    for model in sorted(path for path in folder.iterdir() if path.is_dir()):
        golden, logits = _read_golden(model)
        numbers = [at for at in range(len(golden.prompts)) if case in (None, model.name, f"{model.name}/{at}")]
        if numbers:
            yield from _replay_model(model, home, golden, logits, numbers)


def _read_golden(model: Path) -> tuple[GoldenFile, dict[str, np.ndarray[Any, Any]]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = model / "golden.json"
    try:
        golden = msgspec.json.decode(path.read_bytes(), type=GoldenFile)
        logits = load_file(model / "golden.safetensors")
    except (OSError, msgspec.DecodeError, SafetensorError) as error:
        raise BenchError(f"the golden numbers of `{model}` cannot be read: {error}") from error
    if missing := {f"logits.{at}" for at in range(len(golden.prompts))} - set(logits):
        raise BenchError(f"the golden numbers of `{model}` lack {min(missing)}")
    return golden, logits


def _replay_model(
    model: Path, home: Home, golden: GoldenFile, logits: dict[str, np.ndarray[Any, Any]], numbers: Sequence[int]
) -> Iterator[Verdict]:
    from lattice_cli.engine.measure import measure_logits

    source = ModelSource(model.name, model, "folder")
    _, measured = measure_logits(source, home, [golden.prompts[at].ids for at in numbers])
    with AskedEngine(source, home) as engine:
        for at, found in zip(numbers, measured, strict=True):
            began_s, one = time.monotonic(), golden.prompts[at]
            wanted = logits[f"logits.{at}"]  # (positions, vocabulary)
            error = float(abs(found[list(one.positions)] - wanted).max())
            there = engine.wrong_prompt(one.prompt, one.ids) if one.prompt is not None else None
            if there is None and not error <= golden.tolerance:  # NaN is an error too
                there = Divergence("logits", f"at most {golden.tolerance:g} away", f"{error:.2g} away")
            if one.prompt is not None:
                there = there or engine.wrong_reply(one.prompt, one.greedy)
            else:
                there = there or engine.wrong_tokens(one.ids, one.greedy[: one.sure_tokens(golden.tolerance)])
            seconds = time.monotonic() - began_s
            note = f"recorded from {golden.recorded_from}"
            yield Verdict(
                MODELS, f"{model.name}/{at}", there, seconds=seconds, note=note, figures={"logit error": error}
            )


def replay_greedy(folder: Path, home: Home, case: str | None) -> Iterator[Verdict]:
    """A verdict for each kept answer of each model that is here; of others, one that says they are not."""
    for path in sorted(folder.glob("*.jsonl")):
        lines = _read_greedy(path)
        numbers = [at for at in range(len(lines)) if case in (None, path.stem, f"{path.stem}/{at}")]
        try:
            source = locate(path.stem, home)
        except ModelNotFound as error:
            for at in numbers:
                yield Verdict(GREEDY, f"{path.stem}/{at}", skipped=error.sentence())
            continue
        with AskedEngine(source, home) as engine:
            for at in numbers:
                began_s, line = time.monotonic(), lines[at]
                there = engine.wrong_count(line.prompt, line.prompt_tokens) or engine.wrong_reply(line.prompt, line.ids)
                yield Verdict(GREEDY, f"{path.stem}/{at}", there, seconds=time.monotonic() - began_s)


def _read_greedy(path: Path) -> list[GreedyLine]:
    lines = path.read_bytes().splitlines()
    try:
        return [msgspec.json.decode(line, type=GreedyLine) for line in lines]
    except msgspec.DecodeError as error:
        raise BenchError(f"`{path}`: {error}") from error
