"""Which BLAS serves mlx on a Linux CPU: an optimised one, loaded before mlx.

The mlx wheel links the reference BLAS, about 50 times slower for float32. A library loaded into the
process's global namespace first is the one the loader binds `cblas_sgemm` to. Knows libraries and
symbols; imports mlx only to measure.

`preload` must run before the first `import mlx.core` of the process.

Thread: any
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import logging
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from lattice_cli.errors import UsageError
from lattice_cli.kernels.limits import usable_cores
from lattice_cli.kernels.machine import installed_backends
from lattice_cli.kernels.shared_library import load_globally
from lattice_cli.kernels.threads import BlasThreads, shows_our_cores
from lattice_cli.settings import Home

log = logging.getLogger("lattice.kernels")

_WHEEL = "ngsolve_openblas"
_SYMBOL = "cblas_sgemm"  # without a prefix: numpy's and scipy's own copies do not serve mlx
_SYSTEM_PATTERNS = (
    "/usr/lib/*/openblas-pthread/libblas.so.3",
    "/usr/lib/*/openblas-pthread/libopenblas.so.0",
    "/usr/lib/*/openblas-openmp/libblas.so.3",
    "/usr/lib64/libopenblasp.so.0",
    "/usr/lib/libopenblas.so.0",
)


@dataclass(frozen=True, slots=True)
class BlasReport:
    """`name`: "OpenBLAS" and such, "reference" for the wheel's own, "platform" where we do not choose.
    `reason` is a sentence: why this one. `threads` is None where their number is not ours to follow. `library` is
    the one we loaded.
    """

    name: str
    path: Path | None
    reason: str
    threads: BlasThreads | None = field(default=None, compare=False, repr=False)
    library: ctypes.CDLL | None = field(default=None, compare=False, repr=False)

    @property
    def slow(self) -> bool:
        """Whether matrix products run on the wheel's reference BLAS."""
        return self.name == "reference"

    def fit_threads(self) -> None:
        """Use the cores that are free now; cheap, for a call before each step."""
        if self.threads is not None:
            self.threads.fit()


def preload(home: Home) -> BlasReport:
    """Load the BLAS `home.blas` names, else the best one found; idempotent per choice. Cost: 20 ms.

    With `home.threads` it has that many, whatever OpenBLAS's own variables say.
    Does nothing where mlx does not compute on a Linux CPU.
    Raises: UsageError for a `LATTICE_BLAS` that is no library with an unprefixed `cblas_sgemm`.
    """
    report = _preload(home.blas)
    return report if home.threads is None or report.library is None else _bounded(report, home.threads)


@cache
def _bounded(report: BlasReport, count: int) -> BlasReport:
    """The same library with `count` threads from now on."""
    resize = getattr(report.library, "openblas_set_num_threads", None)
    if resize is None:
        log.warning("`%s` has no function that sets its threads, so it starts as many as it likes", report.path)
        return report
    resize(count)
    return replace(report, threads=None)


@cache
def _preload(choice: str | None) -> BlasReport:
    if sys.platform != "linux":
        return BlasReport("platform", None, "mlx brings its own on this platform")
    if installed_backends() and "mlx-cpu" not in installed_backends():
        return BlasReport("platform", None, "mlx computes on the GPU")
    if choice == "none":
        return BlasReport("reference", None, "`LATTICE_BLAS` is `none`")
    if "mlx.core" in sys.modules:
        return BlasReport("reference", None, "mlx was imported before a BLAS could be chosen")
    report = preload_choice(choice) if choice else _load_found()
    log.info("BLAS: %s (%s)", report.path or report.name, report.reason)
    return report


def preload_choice(choice: str) -> BlasReport:
    """Load the library at a path. Raises: UsageError."""
    path = Path(choice).expanduser()
    library = load_library(path)
    if isinstance(library, str):
        raise UsageError(
            f"`LATTICE_BLAS` is `{choice}`, {library}",
            param="LATTICE_BLAS",
            hint="give the path of an OpenBLAS library, `none` for mlx's own, or leave it unset",
        )
    return _report(path, library, "named by `LATTICE_BLAS`")


def _load_found() -> BlasReport:
    for path, reason in candidates():
        library = load_library(path)
        if not isinstance(library, str):
            return _report(path, library, reason)
        log.info("BLAS: `%s` passed over, %s", path, library)
    return BlasReport("reference", None, "no OpenBLAS was found")


def candidates() -> Iterator[tuple[Path, str]]:
    """Libraries worth trying, best first, each with why."""
    spec = importlib.util.find_spec(_WHEEL)  # a top-level name: the package's own code is not run
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob("lib*openblas*.so*")):
            yield path, f"from the `{_WHEEL}` package"
    for pattern in _SYSTEM_PATTERNS:
        for path in sorted(Path("/").glob(pattern.lstrip("/"))):
            yield path, "the system's"
    found = ctypes.util.find_library("openblas")  # asks ldconfig: 50 ms
    if found:
        yield Path(found), "the system's"


def how_to_get() -> str:
    """The command that brings a fast BLAS to this machine."""
    if platform.machine() == "x86_64":
        return "pip install 'lattice-cli[cpu]'"
    return "install the system's OpenBLAS, e.g. `sudo apt install libopenblas0-pthread`"


def load_library(path: Path) -> ctypes.CDLL | str:
    """Bind mlx's matrix products to a library; where that fails what is wrong, as the end of a sentence."""
    return load_globally(path, _SYMBOL)


def _report(path: Path, library: ctypes.CDLL, reason: str) -> BlasReport:
    name = "OpenBLAS" if "openblas" in str(path.resolve()).lower() else path.name
    return BlasReport(name, path, reason, _threads(library), library)


def _threads(library: ctypes.CDLL) -> BlasThreads | None:
    """OpenBLAS itself would take every core the affinity allows, and heeds no container's quota."""
    named = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    if named or not hasattr(library, "openblas_set_num_threads"):
        return None
    cores = usable_cores()
    if shows_our_cores(cores):
        return BlasThreads(library, cores)
    return BlasThreads(library, max(1, cores - 1), others=lambda: 0)


def measure_gflops(budget_s: float = 0.2, size: int = 512) -> float:
    """Best rate of a float32 matrix product on mlx's default device, in GFLOP/s. Cost: `budget_s`, and one product.

    The best one is what the library can do: on a shared machine the mean is three times less some days.
    Owns its arrays; call it on the thread that owns mlx.
    """
    import mlx.core as mx

    left, right = mx.random.normal((size, size)), mx.random.normal((size, size))  # (size, size)
    mx.eval(left @ right, right)
    start = now = time.perf_counter()
    best_s = float("inf")
    while now - start < budget_s:
        mx.eval(left @ right)
        before, now = now, time.perf_counter()
        best_s = min(best_s, now - before)
    return 2 * size**3 / best_s / 1e9
