"""What holds for every test.

Thread: any
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from lattice_cli.kernels import blas
from lattice_cli.settings import read_home
from tests import samples

# Each home of a test would compile the native kernels anew, half a minute each; their own tests ask for them.
os.environ.setdefault("LATTICE_KERNELS", "off")

# Threads of a BLAS wait for each other by spinning: beside other work, or for tiny matrices, one is faster than two.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Where a GPU computes float32 in TF32, a reference in float32 is none.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

# A job in the background of a script ignores Ctrl-C, and all its children would.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each process that a test starts would compile all of lattice anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The same examples in every run: what fails, fails again. `HYPOTHESIS_PROFILE=random` looks at others.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


PURE = "pure and not (slow or tiny or wire or model)"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """`-m pure` is for between two edits: full counts are asked for by `-m "pure and slow"`, and what has another
    kind's mark besides is of that kind.
    """
    if config.option.markexpr == "pure":
        config.option.markexpr = PURE
    samples.full = has_slow_tests(config.option.markexpr)


def has_slow_tests(chosen: str) -> bool:
    """Whether the tests that `-m` chooses have full counts."""
    return "not slow" not in chosen and chosen != PURE


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that never says `mark.pure` has no pure test: neither it nor what it imports (mlx, openai) is read."""
    if config.option.markexpr != PURE or collection_path.suffix != ".py":
        return None
    return None if "mark.pure" in collection_path.read_text(encoding="utf-8") else True


def pytest_collection_finish() -> None:
    """PERF: a tenth of the suite's time went into looking for garbage among what was imported and stays."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Python's watchdog knows one limit only (pyproject.toml): a test with one of its own is left to pytest-timeout."""
    if item.get_closest_marker("timeout") is not None:
        faulthandler.cancel_dump_traceback_later()


# The BLAS must be in the process before the first test module imports mlx; it imports no mlx itself.
blas.preload(read_home())
