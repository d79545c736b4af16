"""Loads a shared library into the process's global namespace, also where libgfortran is not installed.

Knows the dynamic loader; knows no mlx.

Thread: any
"""

from __future__ import annotations

import ctypes
import importlib.util
import tempfile
from pathlib import Path


def load_globally(path: Path, symbol: str) -> ctypes.CDLL | str:
    """Load a library and make its symbols global; else what is wrong, as the end of a sentence.

    Nothing becomes global when it lacks `symbol`.
    """
    if path.parent != Path() and not path.is_file():
        return "which does not exist" if not path.exists() else "which is no file"
    try:
        library = _open(path, symbol)
    except OSError as error:
        return f"which cannot be loaded ({error})"
    return library or f"which has no `{symbol}` without a prefix"


def _open(path: Path, symbol: str) -> ctypes.CDLL | None:
    """Open globally; None when the symbol is missing. Raises: OSError."""
    try:
        return _open_global(path, symbol)
    except OSError as error:
        runtime = _fortran_runtime() if "libgfortran.so.5" in str(error) else None
        if runtime is None:
            raise
        return _open_beside(path, runtime, symbol)


def _open_global(path: Path, symbol: str) -> ctypes.CDLL | None:
    if not hasattr(ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL), symbol):
        return None
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _fortran_runtime() -> Path | None:
    """The copy of libgfortran that the mlx-cpu wheel brings for its reference BLAS."""
    spec = importlib.util.find_spec("mlx")  # a top-level name: nothing of it is run
    for folder in spec.submodule_search_locations or () if spec else ():
        for file in sorted(Path(folder).parent.glob("mlx_cpu.libs/libgfortran*.so*")):
            return file
    return None


def _open_beside(path: Path, runtime: Path, symbol: str) -> ctypes.CDLL | None:
    """Open `path` with `runtime` as its libgfortran, for systems that have none.

    The wheel looks for libgfortran.so.5 in its own folder (RPATH $ORIGIN), and $ORIGIN is the folder of
    the name a library is opened by: links in a temporary folder bring the two together. Loaded
    libraries stay when the links go, and mlx later shares the same copies.
    """
    with tempfile.TemporaryDirectory(prefix="lattice-blas-") as folder:
        links = {path.name: path, "libgfortran.so.5": runtime}
        links |= {file.name: file for file in runtime.parent.iterdir()}
        for name, target in links.items():
            (Path(folder) / name).symlink_to(target.resolve())
        return _open_global(Path(folder) / path.name, symbol)
