"""The verdicts as tables for people (stderr with `--json`) and as one line of JSON for programs.

Thread: any
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from lattice_cli import console
from lattice_cli.bench.parity import Verdict, counts

WORDS = ("agrees", "differs", "skipped")


def record(verdicts: Sequence[Verdict], command: str, versions: Mapping[str, str | None], seconds: float) -> Any:
    """Everything as values JSON can hold."""
    return {
        "bench": "parity",
        "command": command,
        "versions": dict(versions),
        "seconds": round(seconds, 3),
        "suites": counts(verdicts),
        "cases": [_plain(verdict) for verdict in verdicts],
    }


def _plain(verdict: Verdict) -> dict[str, Any]:
    there = verdict.divergence
    return {
        "suite": verdict.suite,
        "case": verdict.case,
        "verdict": verdict.word,
        "seconds": round(verdict.seconds, 3),
        **({"place": there.place, "expected": there.expected, "got": there.got} if there else {}),
        **({"skipped": verdict.skipped} if verdict.skipped else {}),
        **({"figures": dict(verdict.figures)} if verdict.figures else {}),
        **({"note": verdict.note} if verdict.note else {}),
    }


def show(verdicts: Sequence[Verdict], *, to_stderr: bool, every_case: bool) -> None:
    """The suites with their counts; before them the cases that differ, or all of them."""
    stream = sys.stderr if to_stderr else sys.stdout
    told = [verdict for verdict in verdicts if every_case or verdict.word == "differs"]
    if told:
        columns = ("suite", "case", "verdict", "at", "expected", "got")
        console.table(columns, [_row(verdict) for verdict in told], file=stream)
        stream.write("\n")
    rows = [(suite, *(str(found[word]) for word in WORDS)) for suite, found in counts(verdicts).items()]
    console.table(("suite", *WORDS), rows, file=stream)


def _row(verdict: Verdict) -> tuple[str, ...]:
    there = verdict.divergence
    place, expected, got = (there.place, there.expected, there.got) if there else ("", "", verdict.skipped or "")
    if verdict.figures:
        got = got or ", ".join(f"{name} {value:.2g}" for name, value in verdict.figures.items())
    return (verdict.suite, verdict.case, verdict.word, place, expected, got)


def footnotes(verdicts: Sequence[Verdict]) -> None:
    """On stderr: why cases were skipped, and the largest of each figure."""
    reasons: dict[tuple[str, str], int] = {}
    largest: dict[tuple[str, str], float] = {}
    for verdict in verdicts:
        if verdict.skipped is not None:
            reasons[verdict.suite, verdict.skipped] = reasons.get((verdict.suite, verdict.skipped), 0) + 1
        for name, value in verdict.figures.items():
            largest[verdict.suite, name] = max(value, largest.get((verdict.suite, name), 0.0))
    for (suite, reason), count in reasons.items():
        console.say(f"{suite}: {count} skipped: {reason}")
    for (suite, name), value in largest.items():
        console.say(f"{suite}: largest {name} {value:.2g}")


def write(document: Any) -> None:
    """The last line of stdout."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
