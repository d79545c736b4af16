"""All points of a plan, one after the other; where there is a reference, it takes turns with us, trial by trial.

Thread: any
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lattice_cli.bench.gpu_trace import GpuTrace
from lattice_cli.bench.record import figure
from lattice_cli.bench.speed import REFERENCE, Gauges, Measured, Point, Run, SpeedPlan, run_point, traced
from lattice_cli.bench.speed_trial import Trial
from lattice_cli.console import say
from lattice_cli.model.card import ModelCard


def run_turns(
    card: ModelCard,
    run: Run,
    plan: SpeedPlan,
    gauges: Gauges,
    reference: Run | None = None,
    find_trace: Callable[[], GpuTrace | str] = lambda: "nothing is traced",
) -> list[Measured]:
    """The trials of each point, with a line on stderr for each. The reference does what it can: free rows, cold.

    Last of all, when tracing can slow nothing any more, comes what each point's steps had of the GPU.
    """
    found: list[tuple[Point, list[Trial], Run]] = []
    for point in plan.points():
        turns = [(point, run)]
        if reference is not None and (point.grammar, point.prefix) == ("free", "cold"):
            turns.append((replace(point, engine=REFERENCE), reference))
        runs = [(one, run_point(card, go, plan, one, gauges)) for one, go in turns]
        goes = dict(turns)
        kept: dict[Point, list[Trial]] = {one: [] for one, _ in runs}
        for number in range(plan.trials):
            for one, trials in runs if number % 2 == 0 else reversed(runs):
                trial = next(trials)
                kept[one].append(trial)
                say(f"{one}: trial {number + 1} of {plan.trials}: {_told(trial)}")
        found += [(one, trials, goes[one]) for one, trials in kept.items()]
    trace = find_trace()
    if isinstance(trace, str):
        return [Measured(point, trials) for point, trials, _ in found]
    return [Measured(point, trials, traced(card, go, plan, point, trace)) for point, trials, go in found]


def _told(trial: Trial) -> str:
    prefill, decode = (figure(rate) if rate else "-" for rate in (trial.prefill_rate, trial.decode_rate))
    return f"prefill {prefill} tok/s, decode {decode} tok/s{' (noisy)' if trial.noise.noisy else ''}"
