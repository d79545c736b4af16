"""A finished `bench load` as a record for programs and a table for people. Knows results; measures nothing.

Thread: any
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lattice_cli import console
from lattice_cli.bench.crowd import Goal, LoadResult, Pace
from lattice_cli.bench.noise import Noise
from lattice_cli.bench.record import Outlet, Setting, figure, figure_rows, head, machine_line, plain
from lattice_cli.bench.stats import rate, spread
from lattice_cli.bench.strain import Strain

DEFINITIONS = {
    "first_token_ms": "from before the connection to the first text, at the client",
    "gap_ms": "inter-token: between two arrivals of text one after the other; an arrival may hold several tokens",
    "token_ms": "per token: 1000 / decode_tok_s",
    "whole_ms": "end to end: from before the connection to the end of the stream",
    "prefill_tok_s": "prompt tokens of `usage` (cached ones left out) / seconds to the first text",
    "decode_tok_s": "(tokens - hidden ones - those of the first arrival) / seconds from the first text to the last; "
    "an arrival's tokens are its share of all chunks, one where they come singly",
    "whole_tok_s": "tokens / seconds of the whole request",
    "total_tok_s": "tokens of all replies / wall clock of the whole point",
    "goodput_s": "replies that kept to the targets / seconds of the whole point",
    "first_token_beside_ms": "first token of a short reply beside that many long replies",
    "cancel_ms": "median first token of a short reply right after all those clients left, less the median alone",
}


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """What came of one pace. `noise` counts the server's own work too, where it is on this machine."""

    pace: Pace
    result: LoadResult
    noise: Noise


def load_record(
    setting: Setting, plan: Mapping[str, Any], points: Sequence[LoadPoint], goal: Goal, strain: Strain | None
) -> dict[str, Any]:
    """`lattice bench load` as values JSON can hold. `figures` are those of the first point."""
    told = [_point(point, goal) for point in points]
    return {
        **head("load", setting, int(plan["seed"])),
        "plan": dict(plan),
        "targets": asdict(goal),
        "figures": told[0]["figures"],
        "points": told,
        "strain": _strain(strain) if strain else None,
        "definitions": DEFINITIONS,
    }


def _point(point: LoadPoint, goal: Goal) -> dict[str, Any]:
    answers, misses, wall_s = point.result.answers, point.result.misses, point.result.wall_s
    rates = [answer.decode_rate for answer in answers]
    figures = {
        "first_token_ms": spread(1000 * answer.first_token_s for answer in answers),
        "gap_ms": spread(1000 * gap for answer in answers for gap in answer.gaps_s),
        "token_ms": spread(1000 / rate if rate else None for rate in rates),
        "whole_ms": spread(1000 * answer.total_s for answer in answers),
        "prefill_tok_s": spread(answer.prefill_rate for answer in answers),
        "decode_tok_s": spread(rates),
        "whole_tok_s": spread(answer.whole_rate for answer in answers),
    }
    good = sum(goal.met(answer) for answer in answers)
    return {
        "clients": point.pace.clients,
        "rate_s": point.pace.rate_s,
        "figures": plain(figures),
        "total_tok_s": rate(sum(answer.completion_tokens for answer in answers), wall_s),
        "goodput_s": rate(good, wall_s) or 0.0,
        "good_replies": good,
        "wall_s": wall_s,
        "requests": len(answers) + len(misses),
        "errors": dict(Counter(miss.kind for miss in misses)),
        "failures": dict(Counter(miss.reason for miss in misses)),
        "doubts": dict(Counter(answer.doubt for answer in answers if answer.doubt)),
        "cached_tokens": sum(answer.cached_tokens for answer in answers),
        "completion_tokens": sum(answer.completion_tokens for answer in answers),
        "own_tokens": sum(answer.own_tokens for answer in answers if answer.own_tokens is not None),
        "reasoning_tokens": sum(answer.reasoning_tokens or 0 for answer in answers),
        "hidden_tokens": sum(answer.hidden_tokens for answer in answers),
        "load_1m": point.noise.load_1m,
        "busy_cores": point.noise.others_cores,
        "trials": [asdict(answer) for answer in answers],
    }


def _strain(strain: Strain) -> dict[str, Any]:
    alone, beside, after = (
        spread(1000 * s for s in found) for found in (strain.alone_s, strain.beside_s, strain.after_s)
    )
    return {
        "streams": strain.streams,
        **plain({"first_token_alone_ms": alone, "first_token_beside_ms": beside, "first_token_after_ms": after}),
        "cancel_ms": max(0.0, after.median - alone.median) if alone and after else None,
        "samples": asdict(strain),
    }


def show_load(record: Mapping[str, Any], outlet: Outlet) -> None:
    """A block for each point, then what holds for all of them on stderr, then the record."""
    for number, point in enumerate(record["points"]):
        outlet.line(("\n" if number else "") + heading(point))
        outlet.table(("figure", "p50", "p95, p99", "of"), figure_rows(point["figures"], "p99"))
        for line in _remarks(point, record["targets"]):
            outlet.line(line)
    if record["strain"]:
        outlet.line("")
        for line in _strain_lines(record["strain"]):
            outlet.line(line)
    for line in _footnotes(record):
        console.say(line)
    outlet.write(record)


def heading(point: Mapping[str, Any]) -> str:
    if point["rate_s"] is not None:
        return f"{point['rate_s']:g} requests a second, at random times"
    return f"{point['clients']} client{'s' if point['clients'] > 1 else ''}"


def _remarks(point: Mapping[str, Any], targets: Mapping[str, Any]) -> Iterable[str]:
    if point["total_tok_s"]:
        yield f"together {figure(point['total_tok_s'])} tok/s over {point['wall_s']:.1f} s"
    named = zip(("first token", "inter-token"), targets.values(), strict=True)
    if point["own_tokens"]:
        yield f"{point['completion_tokens']} tokens by usage, {point['own_tokens']} by our count of the text"
    if point["hidden_tokens"]:
        yield f"{point['hidden_tokens']} tokens were thoughts that were not sent; they are in no decode rate"
    stated = [f"{name} {value:g} ms" for name, value in named if value is not None]
    if stated:
        share = f"{point['good_replies']} of {point['requests']}"
        yield f"goodput {figure(point['goodput_s'])} requests/s, {share} within {' and '.join(stated)}"
    for reason, count in point["failures"].items():
        yield f"{count} of {point['requests']} failed: {reason}"
    for doubt, count in point["doubts"].items():
        yield f"{count} of {point['requests']} cannot be believed: {doubt}"


def _strain_lines(strain: Mapping[str, Any]) -> Iterable[str]:
    names = ("first_token_alone_ms", "first_token_beside_ms", "first_token_after_ms")
    alone, beside, after = (figure(strain[name]["median"]) if strain[name] else "-" for name in names)
    count = f"{strain['streams']} long repl{'ies' if strain['streams'] > 1 else 'y'}"
    yield f"first token of a short reply: {alone} ms alone, {beside} ms beside {count}, {after} ms after they left"
    if strain["cancel_ms"] is not None:
        yield f"a client who leaves costs the next one {figure(strain['cancel_ms'])} ms"


def _footnotes(record: Mapping[str, Any]) -> Iterable[str]:
    plan, points = record["plan"], record["points"]
    trials = [trial for point in points for trial in point["trials"]]
    prompts = sorted({trial["prompt_tokens"] for trial in trials})
    if prompts:
        read = str(prompts[0]) if len(prompts) == 1 else f"{prompts[0]} to {prompts[-1]}"
        yield f"{record['model']}: prompts of {read} tokens, up to {plan['max_tokens']} new ones, greedy"
    cached = sum(point["cached_tokens"] for point in points)
    yield f"{plan['warmups']} warm-up(s) left out; {cached} prompt tokens came from a cache"
    counted = "and by the tokenizer of --tokenizer" if plan["tokenizer"] else "alone; --tokenizer counts the text, too"
    yield f"tokens are counted by the server's usage {counted}"
    if short := sum(trial["completion_tokens"] < plan["max_tokens"] for trial in trials):
        yield f"{short} reply(s) ended before {plan['max_tokens']} tokens; rates are from the tokens there were"
    yield machine_line(record["machine"])
