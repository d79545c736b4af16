"""Whether the native kernels serve this process, and with how many threads.

Knows the setting, the platform and the builder; knows no model. `Home.kernels` is `fast` (the default: activations
are rounded to 8 bits per 32 columns where that costs little), `exact` (all in float32) or `off` (mlx's own, through
BLAS).

Thread: worker
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lattice_cli import console
from lattice_cli.kernels import build, cuda_gpu, platform, shelf
from lattice_cli.kernels.limits import usable_cores
from lattice_cli.kernels.recipe import Unbuildable, doubt
from lattice_cli.kernels.threads import BlasThreads, shows_our_cores
from lattice_cli.settings import Home

log = logging.getLogger("lattice.kernels")


@dataclass(frozen=True, slots=True)
class Native:
    """The module, or None and why as a sentence. `fit_threads` is cheap, for a call before each step. `gpu`: steps may
    be fused on an NVIDIA GPU (cuda_gpu.py).
    """

    module: Any | None
    reason: str
    exact: bool = False
    fit_threads: Callable[[], None] = lambda: None
    gpu: bool = False


@dataclass(frozen=True, slots=True)
class Outlook:
    """What `choose` would come to. `file` is the module, None where there is none and `reason` says why; `hint` is the
    command that helps. `lacking`: kernels are wanted here and would have to do without.
    """

    file: Path | None
    isa: str | None
    reason: str
    hint: str | None = None
    lacking: bool = False


@cache
def choose(home: Home) -> Native:
    """The kernels for this machine and setting; compiles them on first use (`build.load`), with a line that says so.

    Decided once for a home in this process: loading and opening a model both ask.
    """
    if home.threads is not None and home.threads > usable_cores():
        log.warning("%d threads for %d usable cores: they will wait for each other", home.threads, usable_cores())
    unwanted = _unwanted(home)
    if unwanted:
        gpu = home.kernels != "off" and platform.backend_name() == "cuda"
        if gpu:
            cuda_gpu.keep_compiled(cuda_gpu.read_gpu(), shelf.kept(home) / "gpu", console.say)
        return Native(None, unwanted, gpu=gpu)
    try:
        module = build.load(home, console.say)
    except Unbuildable as error:
        help_ = f". To get them: {error.hint}" if error.hint else ""
        log.warning("%s; computing through BLAS instead%s", error, help_)
        return Native(None, str(error))
    log.info("native kernels: %s", module.isa())
    return Native(module, module.isa(), exact=home.kernels != "fast", fit_threads=_team(module, home.threads))


def look(home: Home) -> Outlook:
    """What `choose` would come to, without compiling. Cost: 20 ms, and importing mlx.

    Call `blas.preload` first; mlx must be there.
    """
    unwanted = _unwanted(home)
    if unwanted:
        return Outlook(None, None, unwanted)
    try:
        module, file = build.load_found(home)
    except Unbuildable as error:
        return Outlook(None, None, str(error), error.hint, lacking=True)
    doubtful = f"; {doubt()}" if doubt() else ""
    if file is not None and module is not None:
        origin = "carried by the wheel" if shelf.CARRIED in file.parents else "compiled here"
        return Outlook(file, module.isa(), origin + doubtful)
    obstacle = build.obstacle(home)
    if obstacle is not None:
        return Outlook(None, None, str(obstacle), obstacle.hint, lacking=True)
    return Outlook(None, None, "the next start compiles them" + doubtful, "`lattice kernels build` does it now")


def _unwanted(home: Home) -> str | None:
    """Why no kernels are asked for; None where they are."""
    if home.kernels == "off":
        return "the native kernels are off"
    if platform.backend_name() != "cpu":
        if platform.backend_name() == "cuda":
            return "not needed: steps of llama, qwen3 and qwen3_5 are fused on the GPU"
        return "the native kernels are for CPUs, and mlx computes on a GPU"
    return None


class _Team:
    """The team of threads, as a library whose thread count can be set."""

    def __init__(self, module: Any) -> None:
        self.openblas_set_num_threads = module.resize


@cache
def _team(module: Any, threads: int | None) -> Callable[[], None]:
    """What fits the team to the cores that are free now; a count that was asked for stays as it is."""
    if threads is not None:
        module.resize(threads)
        return lambda: None
    cores = usable_cores()
    known = shows_our_cores(cores) and cores == os.cpu_count()
    team: Any = _Team(module)
    return BlasThreads(team, cores, others=None if known else lambda: 0).fit
