"""How fast the engine is, in this process and without HTTP: prefill and decode apart, at depths, with rows beside each
other, free and under a grammar, with a prefix that is new, known or edited.

Every reply is greedy and as long as asked: end tokens are tokens like any other. Knows jobs and a `run` that brings
their times; knows no thread and no clock.

Thread: any
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lattice_cli.bench.energy import Meter
from lattice_cli.bench.gpu_trace import GpuTrace, Load, load_of
from lattice_cli.bench.noise import Watch
from lattice_cli.bench.prose import edited_prompt, exact_prompt, warm_prompt
from lattice_cli.bench.speed_trial import Trial
from lattice_cli.engine.measure_trial import RowTimes
from lattice_cli.engine.worker import new_job_id
from lattice_cli.errors import UsageError
from lattice_cli.job import Constraint, Job, Limits, Prompt, Sampling
from lattice_cli.model.card import ModelCard

Run = Callable[[Sequence[Job]], list[RowTimes]]

GRAMMARS = ("free", "json")
PREFIXES = ("cold", "warm", "edited")
OURS = "lattice"
RIVALS = ("mlx-lm", "transformers")


@dataclass(frozen=True, slots=True)
class Point:
    """What is measured together. `grammar`: "free", or "json" (a list of strings that goes on as long as the reply);
    `prefix`: "cold" (new), "warm" (all but the end was read just before) or "edited" (its middle was changed since).
    """

    prompt_tokens: int
    tokens: int
    rows: int = 1
    grammar: str = "free"
    prefix: str = "cold"
    engine: str = OURS

    def __str__(self) -> str:
        """`512 + 64 tokens, 4 rows, grammar json, warm prefix`; what is usual is left out."""
        words = [f"{self.prompt_tokens} + {self.tokens} tokens"]
        words += [f"{self.rows} rows"] if self.rows > 1 else []
        words += [f"grammar {self.grammar}"] if self.grammar != "free" else []
        words += [f"{self.prefix} prefix"] if self.prefix != "cold" else []
        words += [self.engine] if self.engine != OURS else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class SpeedPlan:
    """Every combination is a point. `warmups` trials of each run first and are left out; `seed` changes the prompts."""

    prompt_tokens: tuple[int, ...] = (512,)
    tokens: int = 64
    rows: tuple[int, ...] = (1,)
    grammars: tuple[str, ...] = ("free",)
    prefixes: tuple[str, ...] = ("cold",)
    trials: int = 5
    warmups: int = 1
    seed: int = 0
    wait_quiet_s: float = 0.0

    def points(self) -> Iterator[Point]:
        for prompt_tokens in self.prompt_tokens:
            for rows in self.rows:
                for grammar in self.grammars:
                    for prefix in self.prefixes:
                        yield Point(prompt_tokens, self.tokens, rows, grammar, prefix)

    def check(self, card: ModelCard) -> None:
        """Raises: UsageError when prompt and reply do not fit the window."""
        longest = max(self.prompt_tokens)
        if longest + self.tokens + 1 > card.context_tokens:
            raise UsageError(
                f"`--prompt-tokens` {longest} and `--tokens` {self.tokens} do not fit the "
                f"context window of {card.context_tokens} tokens",
                param="--prompt-tokens",
            )


@dataclass(frozen=True, slots=True)
class Measured:
    """A point's trials, and what a step of decoding had of the GPU in one more of them, which is not among them."""

    point: Point
    trials: Sequence[Trial]
    load: Load | None = None


@dataclass(frozen=True, slots=True)
class Gauges:
    """What looks at the machine beside the engine."""

    watch: Watch
    meter: Meter | None = None


def run_point(card: ModelCard, run: Run, plan: SpeedPlan, point: Point, gauges: Gauges) -> Iterator[Trial]:
    """The trials of a point one by one, after its warm-ups.

    Raises: what the engine failed with; BenchError for a reply without tokens.
    """
    for at in range(-plan.warmups, plan.trials):
        prompts = _prompts(card, run, plan, point, at)
        gauges.watch.begin(plan.wait_quiet_s if at >= 0 else 0.0)
        if gauges.meter is not None:
            gauges.meter.begin()
        try:
            rows = tuple(run([_job(point, prompt) for prompt in prompts]))
        finally:
            joules = gauges.meter.end() if gauges.meter is not None else None
        if at >= 0:
            yield Trial(rows, gauges.watch.end(), joules)


def traced(card: ModelCard, run: Run, plan: SpeedPlan, point: Point, trace: GpuTrace) -> Load | None:
    """What a step had of the GPU in one more trial, which tracing slows. Raises: as `run_point`."""
    prompts = _prompts(card, run, plan, point, plan.trials)
    trace.begin()
    try:
        trial = Trial(tuple(run([_job(point, prompt) for prompt in prompts])))
    finally:
        kernels = trace.end()
    begin_s, end_s = (trial.rows[0].began_s + moment_s for moment_s in trial.together_s)
    return load_of(kernels, begin_s, end_s, trial.steps)


def _prompts(card: ModelCard, run: Run, plan: SpeedPlan, point: Point, at: int) -> list[Prompt]:
    """Those of a trial, a row each; no two trials share one."""
    first = plan.seed + _pages(point) + (at + plan.warmups) * point.rows * 2
    return [_prompt(card, run, point, first + 2 * row) for row in range(point.rows)]


def _pages(point: Point) -> int:
    """Where a point's numbers begin: no two points share a prompt's beginning, so cold is cold. Engines share them."""
    told = (point.prompt_tokens, point.tokens, point.rows, point.grammar, point.prefix)
    return zlib.crc32(repr(told).encode()) % 100_000 * 997


def _prompt(card: ModelCard, run: Run, point: Point, number: int) -> Prompt:
    """The prompt of a trial's row; where it goes on from another, that one is read first."""
    before = exact_prompt(card.tokenizer, point.prompt_tokens, number)
    if point.prefix == "cold":
        return before
    run([_job(Point(point.prompt_tokens, 1), before)])
    change = warm_prompt if point.prefix == "warm" else edited_prompt
    return change(card.tokenizer, before, number + 1)


def _job(point: Point, prompt: Prompt) -> Job:
    greedy = Sampling(temperature=0.0, repetition_penalty=1.0)
    limits = Limits(point.tokens, ignore_end=True)
    return Job(new_job_id(), prompt, greedy, limits, constraint=_constraint(point))


def _constraint(point: Point) -> Constraint | None:
    if point.grammar == "free":
        return None
    schema = {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": max(8, point.tokens)}
    return Constraint("json_schema", json.dumps(schema))
