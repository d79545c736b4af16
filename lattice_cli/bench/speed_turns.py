"""All points of a plan, one after the other; where there are rivals, they take turns with us, trial by trial.

Thread: any
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from lattice_cli.bench.gpu_trace import GpuTrace
from lattice_cli.bench.record import figure
from lattice_cli.bench.speed import Gauges, Measured, Point, Run, SpeedPlan, run_point, traced
from lattice_cli.bench.speed_trial import Trial
from lattice_cli.console import say
from lattice_cli.model.card import ModelCard


@dataclass(frozen=True, slots=True)
class Rival:
    """Another engine. `prepare` comes before a point's trials and warm-ups, and is not measured; `here` says that it
    computes in this process, where its kernels can be traced.
    """

    run: Run
    prepare: Callable[[Point], None] = lambda point: None
    here: bool = True


def run_turns(
    card: ModelCard,
    run: Run,
    plan: SpeedPlan,
    gauges: Gauges,
    rivals: Mapping[str, Rival] = MappingProxyType({}),
    find_trace: Callable[[], GpuTrace | str] = lambda: "nothing is traced",
) -> list[Measured]:
    """The trials of each point, with a line on stderr for each: A B C, then C B A. Rivals do what they can: free rows,
    cold.

    Last of all, when tracing can slow nothing any more, comes what each point's steps had of the GPU.
    """
    found: list[tuple[Point, list[Trial], Run | None]] = []
    for point in plan.points():
        turns = {point: Rival(run)}
        if (point.grammar, point.prefix) == ("free", "cold"):
            turns |= {replace(point, engine=name): rival for name, rival in rivals.items()}
        for one, rival in turns.items():
            rival.prepare(one)
        runs = [(one, run_point(card, rival.run, plan, one, gauges)) for one, rival in turns.items()]
        kept: dict[Point, list[Trial]] = {one: [] for one, _ in runs}
        for number in range(plan.trials):
            for one, trials in runs if number % 2 == 0 else reversed(runs):
                trial = next(trials)
                kept[one].append(trial)
                say(f"{one}: trial {number + 1} of {plan.trials}: {_told(trial)}")
        found += [(one, trials, turns[one].run if turns[one].here else None) for one, trials in kept.items()]
    trace = find_trace()
    if isinstance(trace, str):
        return [Measured(point, trials) for point, trials, _ in found]
    return [
        Measured(point, trials, traced(card, go, plan, point, trace) if go else None) for point, trials, go in found
    ]


def _told(trial: Trial) -> str:
    prefill, decode = (figure(rate) if rate else "-" for rate in (trial.prefill_rate, trial.decode_rate))
    return f"prefill {prefill} tok/s, decode {decode} tok/s{' (noisy)' if trial.noise.noisy else ''}"
