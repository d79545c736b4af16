"""A finished `bench compare` as a record for programs and a table for people.

Thread: any
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lattice_cli import console
from lattice_cli.bench.compare import FIGURES, Turn, letter, ratio, word
from lattice_cli.bench.contender import Contender
from lattice_cli.bench.load_report import DEFINITIONS
from lattice_cli.bench.reading import Answer, Miss
from lattice_cli.bench.record import Outlet, Setting, figure, figure_rows, head, machine_line, plain
from lattice_cli.bench.stats import spread

ABOUT_RATIOS = (
    "geometric mean over rounds of a contender's figure / that of A in the same round; the interval is the middle 95% "
    "of 5000 bootstrap resamples of the rounds, with the seed of the record"
)


def compare_record(
    setting: Setting, plan: Mapping[str, Any], contenders: Sequence[Contender], turns: Sequence[Turn]
) -> dict[str, Any]:
    """`lattice bench compare` as values JSON can hold."""
    seed = int(plan["seed"])
    return {
        **head("compare", setting, seed),
        "plan": dict(plan),
        "contenders": [_contender(place, one, turns) for place, one in enumerate(contenders)],
        "ratios": [entry for place in range(1, len(contenders)) for entry in _ratios(turns, place, seed)],
        "definitions": {name: DEFINITIONS[name] for name in FIGURES} | {"ratios": ABOUT_RATIOS},
    }


def _contender(place: int, contender: Contender, turns: Sequence[Turn]) -> dict[str, Any]:
    own = [turn for turn in turns if turn.place == place]
    answers = [turn.outcome for turn in own if isinstance(turn.outcome, Answer)]
    misses = [turn.outcome for turn in own if isinstance(turn.outcome, Miss)]
    return {
        "letter": letter(place),
        "target": contender.entry.label,
        "model": contender.model,
        "figures": plain({name: spread(map(read, answers)) for name, (read, _) in FIGURES.items()}),
        "failures": dict(Counter(miss.reason for miss in misses)),
        "errors": dict(Counter(miss.kind for miss in misses)),
        "doubts": dict(Counter(answer.doubt for answer in answers if answer.doubt)),
        "prompt_tokens": sorted({answer.prompt_tokens for answer in answers}),
        "completion_tokens": sorted({answer.completion_tokens for answer in answers}),
        "cached_tokens": sum(answer.cached_tokens for answer in answers),
        "noisy_trials": sum(turn.noise.noisy for turn in own),
        "trials": [
            {"round": turn.round, **asdict(turn.noise), "kind": type(turn.outcome).__name__, **asdict(turn.outcome)}
            for turn in own
        ],
    }


def _ratios(turns: Sequence[Turn], place: int, seed: int) -> list[dict[str, Any]]:
    found = ((name, ratio(turns, place, name, seed)) for name in FIGURES)
    return [
        {"of": letter(place), "over": "A", "figure": name, **asdict(there), "word": word(there, name)}
        for name, there in found
        if there is not None
    ]


def show_compare(record: Mapping[str, Any], outlet: Outlet) -> None:
    """A table a contender, the ratios, what to know, then the record."""
    for one in record["contenders"]:
        outlet.line(f"{one['letter']}: {one['target']}")
        outlet.table(("figure", "median", "p5 .. p95", "of"), figure_rows(one["figures"]))
        for told, verb in (("failures", "failed"), ("doubts", "cannot be believed")):
            for reason, count in one[told].items():
                outlet.line(f"{count} of {len(one['trials'])} {verb}: {reason}")
        outlet.line("")
    rows = [
        (f"{one['of']} / A", one["figure"], figure(one["ratio"]), _interval(one), one["word"])
        for one in record["ratios"]
    ]
    outlet.table(("", "figure", "ratio", "95%", ""), rows)
    for line in _footnotes(record):
        console.say(line)
    outlet.write(record)


def _interval(one: Mapping[str, Any]) -> str:
    return f"{figure(one['low'])} .. {figure(one['high'])}"


def _footnotes(record: Mapping[str, Any]) -> list[str]:
    plan, contenders = record["plan"], record["contenders"]
    lines = [
        f"{plan['rounds']} rounds by turns, {plan['warmups']} warm-up(s) of each left out; a ratio is {ABOUT_RATIOS}"
    ]
    for one in contenders:
        if one["prompt_tokens"]:
            low, high = one["prompt_tokens"][0], one["prompt_tokens"][-1]
            made = f"{one['completion_tokens'][0]} to {one['completion_tokens'][-1]}"
            lines.append(
                f"{one['letter']}: prompts of {low} to {high} tokens by its own count, {one['cached_tokens']} of all "
                f"from a cache, replies of {made}; others disturbed {one['noisy_trials']} of {len(one['trials'])} turns"
            )
    return [*lines, machine_line(record["machine"])]
