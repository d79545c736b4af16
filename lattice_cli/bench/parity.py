"""Replays the parity suites: cases grouped by the server they need, each group against one process, a verdict a case.

Thread: any
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lattice_cli.address import Address
from lattice_cli.bench.parity_call import LIMIT_S, NoAnswer
from lattice_cli.bench.parity_case import Case, read_cases
from lattice_cli.bench.parity_replay import Replay
from lattice_cli.bench.parity_rule import Divergence
from lattice_cli.bench.parity_server import ServerProcess, arguments_of, script_file
from lattice_cli.errors import BenchError

WIRE_SUITES = ("lattice-0.5.0", "lattice-0.6.1", "openai")
MODELS, GREEDY = "models", "greedy"
PLAIN_SCRIPT: Mapping[str, Any] = {"name": "test-model", "replies": [{"tokens": ["hello", " world"]}]}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one case: it agrees, or `divergence` says where not, or `skipped` says why it was not asked.
    `figures` are what was measured on the way, such as the largest error of a logit.
    """

    suite: str
    case: str
    divergence: Divergence | None = None
    skipped: str | None = None
    seconds: float = 0.0
    note: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """`agrees`, `differs` or `skipped`."""
        if self.skipped is not None:
            return "skipped"
        return "agrees" if self.divergence is None else "differs"


def read_suites(folder: Path, names: Sequence[str], case: str | None) -> dict[str, list[Case]]:
    """The wire suites of these names, or of all their cases the one called `case`. Raises: BenchError."""
    suites = {name: read_cases(folder / "parity" / f"{name}.jsonl") for name in names}
    if case is not None:
        suites = {name: [one for one in cases if one.name == case] for name, cases in suites.items()}
    return suites


def replay_at(address: Address, suites: Mapping[str, Sequence[Case]], limit_s: float = LIMIT_S) -> list[Verdict]:
    """Every portable case against a server that runs already; the others are skipped.

    `limit_s` bounds each wait for bytes and each whole answer.
    """
    return [
        _verdict(suite, case, Replay(address, None, limit_s))
        if case.portable
        else Verdict(suite, case.name, skipped="it needs a server of its own")
        for suite, cases in suites.items()
        for case in cases
    ]


def replay_all(suites: Mapping[str, Sequence[Case]], models: Path) -> list[Verdict]:
    """Every case, each against the server it needs; `models` is the folder of tiny models.

    Groups run side by side, one for each core; the verdicts come in the order of the files.
    """
    groups: dict[str, list[tuple[str, Case]]] = defaultdict(list)
    for suite, cases in suites.items():
        for case in cases:
            needs = [case.policy, case.script, case.model, case.flags]
            groups[json.dumps(needs)].append((suite, case))
    stop = threading.Event()
    with tempfile.TemporaryDirectory(prefix="lattice-parity-") as name, ThreadPoolExecutor(_side_by_side()) as pool:
        asked = [_model_of(group[0][1], Path(name), at, models) for at, group in enumerate(groups.values())]
        runs = [
            pool.submit(_run_group, group, model, stop) for group, model in zip(groups.values(), asked, strict=True)
        ]
        try:
            found = {(verdict.suite, verdict.case): verdict for run in runs for verdict in run.result()}
        finally:  # Ctrl-C waits for the cases under way and for no other
            stop.set()
            pool.shutdown(cancel_futures=True)
    return [found[suite, case.name] for suite, cases in suites.items() for case in cases]


def _side_by_side() -> int:
    return max(1, min(8, os.cpu_count() or 1))


def _model_of(case: Case, folder: Path, number: int, models: Path) -> str:
    """What `--model` of the case's server is; a script is written into `folder`."""
    return str(models / case.model) if case.model else script_file(folder, number, dict(case.script or PLAIN_SCRIPT))


def _run_group(group: Sequence[tuple[str, Case]], model: str, stop: threading.Event) -> list[Verdict]:
    """Verdicts over one server; of a server that does not start, the same for all. Fewer after `stop`."""
    if stop.is_set():
        return []
    first = group[0][1]
    with ServerProcess(arguments_of(first.policy, model, first.flags)) as server:
        try:
            address = server.ready()
        except BenchError as error:
            there = Divergence("server", "a server", error.message)
            return [Verdict(suite, case.name, there, note=case.note) for suite, case in group]
        return [_verdict(suite, case, Replay(address, server)) for suite, case in group if not stop.is_set()]


def _verdict(suite: str, case: Case, replay: Replay) -> Verdict:
    began_s = time.monotonic()
    try:
        divergence = replay.run(case.moves())
    except NoAnswer as error:
        divergence = Divergence("answer", "an answer", str(error))
    finally:
        replay.close()
    return Verdict(suite, case.name, divergence, seconds=time.monotonic() - began_s, note=case.note)


def counts(verdicts: Iterable[Verdict]) -> dict[str, dict[str, int]]:
    """Suite -> how many cases agree, differ and were skipped."""
    table: dict[str, dict[str, int]] = {}
    for verdict in verdicts:
        table.setdefault(verdict.suite, dict.fromkeys(("agrees", "differs", "skipped"), 0))[verdict.word] += 1
    return table
