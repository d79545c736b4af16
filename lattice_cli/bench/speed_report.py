"""A finished `bench speed` as a record for programs and a table for people. Knows results; measures nothing.

Thread: any
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lattice_cli import console
from lattice_cli.bench.headroom import Headroom
from lattice_cli.bench.record import Outlet, Setting, figure, figure_rows, head, machine_line, plain
from lattice_cli.bench.speed import OURS, Measured, SpeedPlan
from lattice_cli.bench.speed_trial import Trial
from lattice_cli.bench.stats import spread
from lattice_cli.engine.measure_limits import MachineLimits, Weights

DEFINITIONS = {
    "prefill_tok_s": "prompt tokens of all rows (cached ones left out) / seconds until the last prompt is read; with "
    "several rows the first tokens of those that are done fall into it",
    "decode_tok_s": "tokens of all rows / seconds, from the last row's first token to the end of the first row that "
    "ends: all rows decode, and no prompt's time is in it; one row: (tokens - 1) / (last - first)",
    "first_token_ms": "from asking to the first token, in process; of several rows the one that waits longest",
    "step_ms": "milliseconds from token to token of a row while all rows decode",
    "host_step_ms": "of these, what the host needs to build and submit a step (with a grammar or a prompt beside it: "
    "not told)",
    "gpu_step_ms": "time in which the GPU computed at all, a step, of one more trial that is traced",
    "gpu_step_kernels": "kernels that began on the GPU, a step, of the same trial: drawing a token is in it",
    "floor_step_ms": "the bytes of a step at this machine's measured bandwidth; --explain shows how",
    "joules_token": "energy of the whole trial, its prompt too / tokens of all replies",
    "peak_memory_bytes": "most memory of this process in RAM, all points and this tool included",
    "device_peak_bytes": "most memory of mlx's own allocator",
    "limit_percent": "of this machine's measured bandwidth (decode) and GEMM rate (prefill); --explain shows how",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What was learned beside the trials; None of what is not known."""

    load_s: float
    peak_memory_bytes: int
    device_peak_bytes: int | None
    model_hash: str | None
    weights: Weights | None
    machine: MachineLimits | None
    energy_source: str


def speed_record(setting: Setting, plan: SpeedPlan, points: Sequence[Measured], facts: Facts) -> dict[str, Any]:
    """`lattice bench speed` as values JSON can hold. `figures` are those of the first point."""
    told = [_point(measured, facts) for measured in points]
    return {
        **head("speed", setting, plan.seed),
        "model_hash": facts.model_hash,
        "plan": asdict(plan),
        "figures": told[0]["figures"],
        "points": told,
        "load_s": facts.load_s,
        "model_bytes": facts.weights.model_bytes if facts.weights else None,
        "peak_memory_bytes": facts.peak_memory_bytes,
        "device_peak_bytes": facts.device_peak_bytes,
        "energy": facts.energy_source,
        "limits": {
            "machine": asdict(facts.machine) if facts.machine else None,
            "weights": asdict(facts.weights) if facts.weights else None,
        },
        "definitions": DEFINITIONS,
    }


def _point(measured: Measured, facts: Facts) -> dict[str, Any]:
    point, trials, load = measured.point, measured.trials, measured.load
    room = None
    if point.engine == OURS and facts.weights and facts.machine:
        room = Headroom(facts.weights, facts.machine, point)
    figures = {
        "prefill_tok_s": spread(trial.prefill_rate for trial in trials),
        "decode_tok_s": spread(trial.decode_rate for trial in trials),
        "first_token_ms": spread(1000 * trial.first_token_s for trial in trials),
    }
    rows = point.rows
    figures["step_ms"] = spread(1000 * rows / trial.decode_rate if trial.decode_rate else None for trial in trials)
    hosts = spread(trial.host_step_s and 1000 * trial.host_step_s for trial in trials)
    if hosts is not None:
        figures["host_step_ms"] = hosts
    if load is not None:
        figures["gpu_step_ms"] = spread([1000 * load.busy_s])
        figures["gpu_step_kernels"] = spread([load.kernels])
    if any(trial.joules is not None for trial in trials):
        figures["joules_token"] = spread(trial.token_joules for trial in trials)
    prefill, decode = ((found.median if (found := figures[name]) else None) for name in list(figures)[:2])
    return {
        "name": str(point),
        **asdict(point),
        "figures": plain(figures),
        "limit_percent": {
            "prefill_tok_s": room.prefill_percent(prefill) if room else None,
            "decode_tok_s": room.decode_percent(decode) if room else None,
        },
        "floor_step_ms": 1000 * room.floor_s if room else None,
        "explain": list(room.explain(prefill, decode)) if room else [],
        "cached_tokens": sum(trial.cached_tokens for trial in trials),
        "reasoning_tokens": sum(row.reasoning_tokens for trial in trials for row in trial.rows),
        "short_replies": sum(row.completion_tokens < point.tokens for trial in trials for row in trial.rows),
        "noisy_trials": sum(trial.noise.noisy for trial in trials),
        "trials": [_trial(trial) for trial in trials],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "prefill_tok_s": trial.prefill_rate,
        "decode_tok_s": trial.decode_rate,
        "first_token_ms": 1000 * trial.first_token_s,
        "joules": trial.joules,
        **asdict(trial.noise),
        "rows": [
            {name: value for name, value in asdict(row).items() if name not in ("tokens_s", "began_s", "submits_s")}
            | {"first_token_s": row.tokens_s[0], "last_token_s": row.tokens_s[-1]}
            for row in trial.rows
        ],
    }


def show_speed(record: Mapping[str, Any], outlet: Outlet, *, explain: bool) -> None:
    """A block for each point, then what holds for all of them on stderr, then the record."""
    for number, point in enumerate(record["points"]):
        outlet.line(("\n" if number else "") + point["name"])
        shares = point["limit_percent"]
        rows = [
            (*row, f"{shares[row[0]]:.0f}%" if shares.get(row[0]) is not None else "-")
            for row in figure_rows(point["figures"])
        ]
        outlet.table(("figure", "median", "p5 .. p95", "of", "limit"), rows)
        for line in _remarks(point, record["plan"]):
            outlet.line(line)
        if explain:
            for line in point["explain"]:
                outlet.line(f"  {line}")
    for line in _footnotes(record):
        console.say(line)
    outlet.write(record)


def _remarks(point: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterable[str]:
    rows = [row for trial in point["trials"] for row in trial["rows"]]
    if point["prefix"] != "cold" or point["cached_tokens"]:
        read = sum(row["prompt_tokens"] for row in rows)
        yield f"{point['cached_tokens']} of {read} prompt tokens came from a cache"
    if point["reasoning_tokens"]:
        yield f"{point['reasoning_tokens']} tokens were thoughts, and are counted"
    if point["short_replies"]:
        yield f"{point['short_replies']} of {len(rows)} replies ended before {point['tokens']} tokens"
    if point["noisy_trials"]:
        yield f"noisy: others used the cores in {point['noisy_trials']} of {plan['trials']} trials"


def _footnotes(record: Mapping[str, Any]) -> Iterable[str]:
    plan, points = record["plan"], record["points"]
    yield f"{record['model']}: greedy; {plan['warmups']} warm-up(s) of each point left out"
    if any(point["prefix"] != "cold" for point in points) and not any(point["cached_tokens"] for point in points):
        yield "no prompt token came from a cache: this engine keeps none, so warm and edited are as cold"
    memory = f"peak memory {console.megabytes(record['peak_memory_bytes'])}"
    if record["model_bytes"]:
        memory = f"weights {console.megabytes(record['model_bytes'])}, {memory}"
    yield f"{memory}, loaded in {figure(record['load_s'])} s"
    yield f"energy: {record['energy']}"
    if all(trial["others_cores"] is None for point in points for trial in point["trials"]):
        yield "what other processes did cannot be told on this machine"
    yield machine_line(record["machine"])
