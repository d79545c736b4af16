"""Whether the native kernels serve this process, and with how many threads.

Knows the setting, the platform and the builder; knows no model. `LATTICE_KERNELS` is `exact` (the default:
activations stay float32), `fast` (rounded to 8 bits per 32 columns) or `off` (mlx's own, through BLAS).

Thread: worker
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from lattice_cli import console
from lattice_cli.errors import UsageError
from lattice_cli.kernels import build, platform
from lattice_cli.kernels.limits import usable_cores
from lattice_cli.kernels.threads import BlasThreads, shows_our_cores
from lattice_cli.settings import Home

log = logging.getLogger("lattice.kernels")

MODES = ("off", "exact", "fast")


@dataclass(frozen=True, slots=True)
class Native:
    """The module, or None and why as a sentence. `fit_threads` is cheap, for a call before each step."""

    module: Any | None
    reason: str
    exact: bool = False
    fit_threads: Callable[[], None] = lambda: None


@cache
def choose(home: Home) -> Native:
    """The kernels for this machine and setting; compiles them on first use (`build.load`), with a line that says so.

    Decided once for a home in this process: loading and opening a model both ask.

    Raises: UsageError for a `LATTICE_KERNELS` that is none of off, exact, fast.
    """
    mode = home.kernels
    if mode not in MODES:
        raise UsageError(
            f"`LATTICE_KERNELS` is `{mode}`, and must be `off`, `exact` or `fast`",
            param="LATTICE_KERNELS",
            hint="leave it unset for what suits this machine",
        )
    if mode == "off":
        return Native(None, "the native kernels are off")
    if platform.backend_name() != "cpu":
        return Native(None, "the native kernels are for CPUs, and mlx computes on a GPU")
    try:
        module = build.load(home, console.say)
    except build.Unbuildable as error:
        log.warning("%s; computing through BLAS instead. To get them: %s", error, build.HOW_TO_GET)
        return Native(None, str(error))
    log.info("native kernels: %s", module.isa())
    return Native(module, module.isa(), exact=mode != "fast", fit_threads=_team(module))


class _Team:
    """The team of threads, as a library whose thread count can be set."""

    def __init__(self, module: Any) -> None:
        self.openblas_set_num_threads = module.resize


@cache
def _team(module: Any) -> Callable[[], None]:
    """Start the team, once; returns what fits it to the cores that are free now."""
    cores = usable_cores()
    module.start(cores)
    known = shows_our_cores(cores) and cores == os.cpu_count()
    team: Any = _Team(module)
    return BlasThreads(team, cores, others=None if known else lambda: 0).fit
