"""Which suites a run of `lattice bench parity` replays, where their fixtures lie, and against whom.

Thread: any
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import lattice_cli
from lattice_cli import console
from lattice_cli.address import read_address
from lattice_cli.bench.parity import GREEDY, MODELS, WIRE_SUITES, Verdict, read_suites, replay_all, replay_at
from lattice_cli.errors import BenchError, UsageError
from lattice_cli.settings import read_home

SUITES = (*WIRE_SUITES, MODELS, GREEDY)


@dataclass(frozen=True, slots=True)
class ParityPlan:
    """None means: all suites, all cases, servers of our own, the fixtures that come with lattice."""

    suite: str | None = None
    case: str | None = None
    url: str | None = None
    fixtures: Path | None = None


def run_parity(plan: ParityPlan) -> list[Verdict]:
    """Every verdict, in the order of the suites and their files.

    Raises: UsageError (a suite or an address there is not), BenchError (no fixtures, a malformed one, no such
    case), ModelError and InstallError where a model cannot be loaded.
    """
    if plan.suite not in (None, *SUITES):
        raise UsageError(f"there is no suite `{plan.suite}`", param="--suite", hint=f"there are {', '.join(SUITES)}")
    if plan.url is not None and plan.suite in (MODELS, GREEDY):
        raise UsageError(f"the suite `{plan.suite}` asks the engine of this process, not a server", param="--url")
    folder = plan.fixtures or _shipped()
    wanted = SUITES if plan.suite is None else (plan.suite,)
    suites = read_suites(folder, [name for name in wanted if name in WIRE_SUITES], plan.case)
    if plan.url is not None:
        verdicts = replay_at(read_address(plan.url), suites)
    else:
        count = sum(map(len, suites.values()))
        with console.status(f"replaying {count} cases" if count else "asking the engine"):
            verdicts = [*replay_all(suites, folder / MODELS), *_engine_verdicts(plan, wanted, folder)]
    if not verdicts:
        raise BenchError(f"no suite has a case `{plan.case}`" if plan.case else "there are no cases")
    return verdicts


def _engine_verdicts(plan: ParityPlan, wanted: tuple[str, ...], folder: Path) -> Iterator[Verdict]:
    from lattice_cli.bench.parity_models import replay_greedy, replay_models

    home = read_home()
    if home.kernels == "fast":  # the kept answers are those of float32
        home = replace(home, kernels="exact")
    if MODELS in wanted:
        yield from replay_models(folder / MODELS, home, plan.case)
    if GREEDY in wanted:
        yield from replay_greedy(folder / GREEDY, home, plan.case)


def _shipped() -> Path:
    """Where the fixtures lie: beside the package in a checkout, inside it when installed."""
    package = Path(lattice_cli.__file__).parent
    for folder in (package.parent / "fixtures", package / "fixtures"):
        if (folder / "parity").is_dir():
            return folder
    raise BenchError("the fixtures are not here", hint="name them with --fixtures")
