"""Which BLAS is in the process: what is refused, and what the one found is worth.

Each case runs in a process of its own: a loaded library cannot be unloaded.

Thread: any
"""

from __future__ import annotations

import ctypes.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lattice_cli.errors import UsageError
from lattice_cli.kernels import blas
from lattice_cli.kernels.machine import installed_backends
from lattice_cli.settings import Home

LINUX_CPU = sys.platform == "linux" and "mlx-cpu" in installed_backends()
pytestmark = pytest.mark.skipif(not LINUX_CPU, reason="only on a Linux CPU do we choose the BLAS")

PROGRAM = """
from pathlib import Path
from lattice_cli.kernels import blas
from lattice_cli.settings import Home
report = blas.preload(Home(Path("/nowhere"), Path("/nowhere"), blas={choice!r}))
print(report.name, report.path, report.slow, sep="|")
again = blas.preload(Home(Path("/nowhere"), Path("/nowhere"), blas={choice!r}))
assert again == report
import sys
assert "mlx" not in sys.modules, "choosing a BLAS must not import mlx"
assert blas.measure_gflops(budget_s=0.01) > 0
"""


def bound_elsewhere(choice: str | None, folder: Path) -> tuple[list[str], set[str]]:
    """The report, and the libraries that the loader bound mlx's matrix product to (ld.so(8), LD_DEBUG)."""
    traced = {**os.environ, "LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": str(folder / "loader")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(choice=choice)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=traced,
    )
    loader = "".join(trace.read_text(errors="replace") for trace in folder.glob("loader.*"))
    bound = re.findall(r"binding file \S*/libmlx\.so \[0\] to (\S+) \[0\]: normal symbol `cblas_sgemm'", loader)
    return done.stdout.split("|"), {Path(library).name for library in bound}


@pytest.mark.wire
def test_mlx_multiplies_with_the_library_that_was_found(tmp_path: Path) -> None:
    """The reference BLAS in mlx-cpu gives 1.5 to 8 GFLOP/s, an OpenBLAS over 100 a core with AVX512. Which of them
    mlx is bound to is asked of the loader: a rate says it only on a quiet machine.
    """
    (name, path, slow), libraries = bound_elsewhere(None, tmp_path)
    assert (name, slow.strip()) == ("OpenBLAS", "False"), f"no fast BLAS here: {blas.how_to_get()}"
    assert libraries == {Path(path).name}


@pytest.mark.wire
def test_none_leaves_mlx_its_own(tmp_path: Path) -> None:
    (plain, _, slow), libraries = bound_elsewhere("none", tmp_path)
    assert (plain, slow.strip()) == ("reference", "True")
    assert not any("openblas" in library for library in libraries)
    assert len(libraries) == 1


@pytest.mark.pure
@pytest.mark.parametrize(
    ("make", "end"),
    [
        (lambda folder: folder / "absent.so", "which does not exist"),
        (lambda folder: folder, "which is no file"),
        (lambda folder: _written(folder / "text.so", "no library"), "which cannot be loaded (.*)"),
        (lambda _: Path(ctypes.util.find_library("m") or "libm.so.6"), "which has no `cblas_sgemm` without a prefix"),
    ],
)
def test_a_path_that_is_no_blas_is_a_usage_error(tmp_path: Path, make: object, end: str) -> None:
    path = make(tmp_path)  # type: ignore[operator]
    with pytest.raises(UsageError, match=f"^`LATTICE_BLAS` is `{path}`, {end}$") as caught:
        blas.preload_choice(str(path))
    assert caught.value.exit_code == 2
    assert caught.value.param == "LATTICE_BLAS"


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.pure
def test_numpys_own_copy_does_not_serve() -> None:
    """Its symbols carry a prefix, so loading it changes nothing: better said than believed."""
    import numpy as np

    copies = sorted((Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*"))
    assert [blas.load_library(copy) for copy in copies] == ["which has no `cblas_sgemm` without a prefix"] * len(copies)


@pytest.mark.pure
def test_after_mlx_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The loader has bound the symbols by then; a report that says otherwise would be a lie."""
    monkeypatch.setitem(sys.modules, "mlx.core", object())  # type: ignore[arg-type]
    report = blas.preload(Home(tmp_path, tmp_path, blas=str(tmp_path / "anything.so")))
    assert report == blas.BlasReport("reference", None, "mlx was imported before a BLAS could be chosen")
