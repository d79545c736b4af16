"""A finished measurement as a record for programs (one line of JSON on stdout) and a table for people (stderr).

Every figure says what it is: unit in its name, definition in the record. Knows results; measures nothing.

Thread: any
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lattice_cli import console
from lattice_cli.bench.crowd import LoadPlan, LoadResult
from lattice_cli.bench.machine import Machine
from lattice_cli.bench.speed import SpeedPlan, Trial
from lattice_cli.bench.stats import Spread, rate, spread

SPEED_DEFINITIONS = {
    "prefill_tok_s": "prompt tokens read (cached ones left out) / seconds from a free slot to the end of the prompt",
    "decode_tok_s": "(tokens - 1) / seconds from the first token to the last; the prompt's time is not in it",
    "first_token_ms": "from submission to the first token, in process",
    "peak_memory_bytes": "most memory of this process in RAM; memory of a separate GPU is not in it",
}
LOAD_DEFINITIONS = {
    "first_token_ms": "from before the connection to the first text, at the client",
    "prefill_tok_s": "prompt tokens of `usage` (cached ones left out) / seconds to the first text",
    "decode_tok_s": "(tokens of `usage` - 1) / seconds from the first text to the last",
    "token_ms": "milliseconds a token after the first: 1000 / decode_tok_s",
    "gap_ms": "between two texts that arrived one after the other; a text may hold several tokens",
    "whole_tok_s": "tokens of `usage` / seconds of the whole request",
    "total_tok_s": "tokens of `usage` of all clients / wall clock of the whole run",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What every record names: the command, the machine, versions, what was measured."""

    command: str
    machine: Machine
    versions: Mapping[str, str | None]
    model: str
    about: Mapping[str, Any]


def speed_record(setting: Setting, plan: SpeedPlan, trials: Sequence[Trial], peak_bytes: int) -> dict[str, Any]:
    """`lattice bench speed` as values JSON can hold."""
    figures = {
        "prefill_tok_s": spread(trial.prefill_rate for trial in trials),
        "decode_tok_s": spread(trial.decode_rate for trial in trials),
        "first_token_ms": spread(1000 * trial.first_token_s for trial in trials),
    }
    return {
        "bench": "speed",
        **_head(setting, plan.seed),
        "plan": asdict(plan),
        "figures": _plain(figures),
        "peak_memory_bytes": peak_bytes,
        "cached_tokens": sum(trial.cached_tokens for trial in trials),
        "short_runs": sum(trial.completion_tokens < plan.max_tokens for trial in trials),
        "trials": [asdict(trial) for trial in trials],
        "definitions": SPEED_DEFINITIONS,
    }


def load_record(setting: Setting, plan: LoadPlan, result: LoadResult) -> dict[str, Any]:
    """`lattice bench load` as values JSON can hold."""
    answers = result.answers
    figures = {
        "first_token_ms": spread(1000 * answer.first_token_s for answer in answers),
        "prefill_tok_s": spread(answer.prefill_rate for answer in answers),
        "decode_tok_s": spread(answer.decode_rate for answer in answers),
        "token_ms": spread(1000 / answer.decode_rate if answer.decode_rate else None for answer in answers),
        "gap_ms": spread(1000 * gap for answer in answers for gap in answer.gaps_s),
        "whole_tok_s": spread(answer.whole_rate for answer in answers),
    }
    return {
        "bench": "load",
        **_head(setting, plan.seed),
        "plan": asdict(plan),
        "figures": _plain(figures),
        "total_tok_s": rate(sum(answer.completion_tokens for answer in answers), result.wall_s),
        "wall_s": result.wall_s,
        "requests": len(answers) + len(result.misses),
        "failures": dict(Counter(miss.reason for miss in result.misses)),
        "cached_tokens": sum(answer.cached_tokens for answer in answers),
        "short_runs": sum(answer.completion_tokens < plan.max_tokens for answer in answers),
        "trials": [{name: value for name, value in asdict(answer).items() if name != "gaps_s"} for answer in answers],
        "definitions": LOAD_DEFINITIONS,
    }


def show(record: Mapping[str, Any]) -> None:
    """The table and its footnotes on stderr, then the record as the last line of stdout."""
    console.table(("figure", "median", "quartiles", "range", "of"), _rows(record["figures"]), file=sys.stderr)
    for line in _footnotes(record):
        console.say(line)
    sys.stdout.write(json.dumps(_rounded(record)) + "\n")
    sys.stdout.flush()


def _rounded(value: Any) -> Any:
    """Six decimals: a microsecond of a second, and no figure here is known better."""
    match value:
        case float():
            return round(value, 6)
        case dict():
            return {name: _rounded(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_rounded(inner) for inner in value]
        case _:
            return value


def figure(value: float) -> str:
    """Four digits, and no exponents: `0.4422`, `19.05`, `34,260`."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _head(setting: Setting, seed: int) -> dict[str, Any]:
    return {
        "model": setting.model,
        "command": setting.command,
        "seed": seed,
        **setting.about,
        "machine": asdict(setting.machine),
        "versions": dict(setting.versions),
    }


def _plain(figures: Mapping[str, Spread | None]) -> dict[str, Any]:
    return {name: None if there is None else asdict(there) for name, there in figures.items()}


def _rows(figures: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, there in figures.items():
        if there is None:
            rows.append((name, "-", "-", "-", "0"))
            continue
        low, q1, median, q3, high = (figure(there[key]) for key in ("low", "q1", "median", "q3", "high"))
        rows.append((name, median, f"{q1} .. {q3}", f"{low} .. {high}", str(there["count"])))
    return rows


def _footnotes(record: Mapping[str, Any]) -> Iterable[str]:
    plan, trials = record["plan"], record["trials"]
    prompts = sorted({trial["prompt_tokens"] for trial in trials})
    if prompts:
        read = str(prompts[0]) if len(prompts) == 1 else f"{prompts[0]} to {prompts[-1]}"
        yield f"{record['model']}: prompts of {read} tokens, up to {plan['max_tokens']} new ones, greedy"
    yield f"{plan['warmups']} warm-up(s) left out; {record['cached_tokens']} prompt tokens came from a cache"
    if record["short_runs"]:
        yield f"{record['short_runs']} reply(s) ended before --max-tokens; rates are from the tokens there were"
    if record.get("peak_memory_bytes"):
        yield f"peak memory: {console.megabytes(record['peak_memory_bytes'])}"
    if record.get("total_tok_s"):
        yield f"all clients together: {figure(record['total_tok_s'])} tok/s over {record['wall_s']:.1f} s"
    for reason, count in record.get("failures", {}).items():
        yield f"{count} of {record['requests']} failed: {reason}"
    machine = record["machine"]
    name = machine["processor"] or machine["system"]
    yield f"{name}, {machine['cores']} cores, load {machine['load_1m']} at the start"
