"""transformers as a rival of `bench speed`: what it can be asked, its times as ours, what it used.

torch and mlx never meet in one process: the work is a child's (rival_transformers.py).

Thread: any
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lattice_cli.bench import rival_transformers
from lattice_cli.bench.rival_process import ChildProcess
from lattice_cli.bench.speed import Point
from lattice_cli.console import say
from lattice_cli.engine.measure_trial import RowTimes
from lattice_cli.errors import BenchError, UsageError
from lattice_cli.job import Job
from lattice_cli.model.card import ModelSource
from lattice_cli.model.format import read_format
from lattice_cli.model.random_weights import RandomModel

TRANSFORMERS = "transformers"


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. `open_s` is for importing torch, `load_s` for reading a large folder; in `prepare_s` a large network is
    compiled, in three ways at worst.
    """

    open_s: float = 300.0
    load_s: float = 1800.0
    prepare_s: float = 1800.0
    trial_s: float = 1200.0


class TransformersRival:
    """Use as a context manager: it starts the child and asks it whether all is there; `load` before the first trial.

    Raises from its beginning: UsageError for a missing package and for what transformers does not know, BenchError.
    """

    def __init__(
        self,
        model: ModelSource | RandomModel,
        threads: int | None = None,
        python: str = sys.executable,
        program: Path = Path(rival_transformers.__file__),
        patience: Patience = Patience(),
    ) -> None:
        self._request = opening(model, threads)
        # NOTE: -P, for a folder with a module that is called as one of torch's would come before it
        self._child = ChildProcess(TRANSFORMERS, (python, "-P", str(program)))
        self._patience = patience
        self.facts: dict[str, Any] = {}

    def __enter__(self) -> TransformersRival:
        self._child.__enter__()
        try:
            self.facts = self._child.ask(self._request, "importing torch and transformers", self._patience.open_s)
        except BaseException as error:
            self._child.__exit__(type(error))
            raise
        names = [f"{self.facts.get(name)}" for name in ("transformers", "torch", "network", "attention", "device")]
        say("transformers {}, torch {}: {}, attention {}, on {}".format(*names))
        return self

    def __exit__(self, *raised: object) -> None:
        self._child.__exit__(*raised)

    def load(self) -> None:
        """Weights onto the device. Raises: as `ChildProcess.ask`."""
        self.facts |= self._child.ask({"do": "load"}, "loading weights", self._patience.load_s)
        self.facts["shapes"] = []

    def prepare(self, point: Point) -> None:
        """Compile for a point. Raises: as `ChildProcess.ask`."""
        shape = {"rows": point.rows, "prompt_tokens": point.prompt_tokens, "tokens": point.tokens}
        told = self._child.ask({"do": "prepare", **shape}, "compiling and warming up", self._patience.prepare_s)
        self.facts["shapes"].append(shape | told)
        mode = told.get("compile")
        say(f"{point}: {f'steps compiled ({mode})' if mode else 'steps not compiled'}")

    def run(self, jobs: Sequence[Job]) -> list[RowTimes]:
        """A trial. To wait for each token would slow it, so only two moments are read, when the first tokens were there
        and when all were; the tokens between are spread evenly, and so is the host's time until all steps were
        submitted. `read_s` is the first token's, which the pass over the prompt makes.

        Raises: as `ChildProcess.ask`.
        """
        tokens = jobs[0].limits.max_tokens
        prompts = [list(job.prompt.ids) for job in jobs]
        told = self._child.ask({"do": "trial", "prompts": prompts, "tokens": tokens}, "a trial", self._patience.trial_s)
        try:
            on_gpu = self.facts["device"] != "cpu"
            rows = [_times(told, prompt, ids, on_gpu) for prompt, ids in zip(prompts, told["ids"], strict=True)]
            peak_bytes = int(told["peak_bytes"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise BenchError(f"{TRANSFORMERS} answered a trial with {str(told)[:100]}") from error
        self.facts["peak_bytes"] = max(peak_bytes, self.facts.get("peak_bytes", 0))
        return rows

    def used_s(self) -> float:
        """Processor time of the child and its descendants so far."""
        return self._child.used_s()


def opening(model: ModelSource | RandomModel, threads: int | None) -> dict[str, Any]:
    """What the child is asked first. Raises: UsageError for weights that transformers does not read."""
    request: dict[str, Any] = {"do": "open", "threads": threads}
    if isinstance(model, RandomModel):
        if model.dtype is None:
            raise UsageError(
                f"`--reference transformers` computes with dense weights, and `--bits` is {model.bits}",
                param="--bits",
                hint="add `--dtype bfloat16`",
            )
        return request | {"random": True, "path": str(model.config), "dtype": model.dtype, "seed": model.seed}
    found = read_format(model.path)
    if found.kind not in ("hf", "mlx") or found.quantization != "none":
        what = found.kind if found.kind not in ("hf", "mlx") else found.quantization
        raise UsageError(
            f"`--reference transformers` reads folders of dense safetensors, and `{model.served_id}` is {what}",
            param="--reference",
            hint="give such a folder, or `--random-weights CONFIG.json --dtype bfloat16`",
        )
    return request | {"random": False, "path": str(model.path)}


def _times(told: dict[str, Any], prompt: Sequence[int], ids: Sequence[int], on_gpu: bool) -> RowTimes:
    began_s = float(told["began_s"])
    read_s, submitted_s, ended_s = (float(told[name]) - began_s for name in ("read_s", "submitted_s", "ended_s"))
    steps = len(ids) - 1
    moments = [read_s + (ended_s - read_s) * at / steps for at in range(steps)]
    submit_s = (submitted_s - read_s) / steps if on_gpu else None
    return RowTimes(len(prompt), 0, len(ids), 0, read_s, (*moments, ended_s), began_s, (None, *[submit_s] * steps))
