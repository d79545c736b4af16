"""Compiled modules that lie on this machine: carried by the wheel, or compiled into `LATTICE_HOME/kernels`.

Each lies in a folder named by its key, beside `made.json`, which says with which versions it was made: so that it can
be told to fit without nanobind, which is needed to compile and not to run. A folder without a module holds
`failed.txt`, why compiling failed. Knows files; loads nothing and compiles nothing.

Thread: any
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lattice_cli.kernels import recipe
from lattice_cli.settings import Home

CARRIED = Path(__file__).parent / "prebuilt"
MADE, FAILED = "made.json", "failed.txt"
Say = Callable[[str], object]
_KEY = re.compile(r"[0-9a-f]{20}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder of the shelf. Versions are empty where nothing says them; `fits`: it was made from the sources, for the
    mlx and for the Python that are here. `made`: there is a module; `failed`: why there is none is written there.
    """

    folder: Path
    mlx: str
    nanobind: str
    fits: bool
    made: bool
    failed: bool
    nbytes: int

    @property
    def key(self) -> str:
        return self.folder.name

    @property
    def file(self) -> Path:
        """The module, where `made`."""
        return self.folder / recipe.FILE


def kept(home: Home) -> Path:
    """Where modules compiled here lie."""
    return home.root / "kernels"


def fitting(home: Home) -> Iterator[Entry]:
    """Modules that can be tried, the wheel's first. Cost: 1 ms each."""
    yield from (entry for root in (CARRIED, kept(home)) for entry in entries(root) if entry.fits and entry.made)


def entries(root: Path) -> Iterator[Entry]:
    """What lies in `root`, in the order of keys. Anything that does not look like ours is left out."""
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if _KEY.fullmatch(folder.name) and folder.is_dir():
            mlx, nanobind = _versions(folder)
            fits = recipe.key_of(recipe.version("mlx"), nanobind) == folder.name
            made = any(folder.glob(f"{recipe.NAME}.*"))
            yield Entry(folder, mlx, nanobind, fits, made, (folder / FAILED).exists(), _nbytes(folder))


def describe(folder: Path, made: recipe.Recipe) -> None:
    """Say in a folder what its module is made with; written first, so that no module is without it."""
    (folder / MADE).write_text(json.dumps({"mlx": made.mlx, "nanobind": made.nanobind}) + "\n")


def remove(entry: Entry) -> int:
    """The bytes that are free now. Processes that run the module keep it. Raises: OSError."""
    shutil.rmtree(entry.folder)
    return entry.nbytes


@contextmanager
def lock(home: Home, say: Say | None = None) -> Iterator[None]:
    """One process at a time; the operating system lets go when a process dies. Raises: OSError."""
    import fcntl

    kept(home).mkdir(parents=True, exist_ok=True)
    with (kept(home) / "build.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if say is not None:
                say("waiting for another process that compiles the CPU kernels")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _versions(folder: Path) -> tuple[str, str]:
    try:
        made = json.loads((folder / MADE).read_text())
        return str(made["mlx"]), str(made["nanobind"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""


def _nbytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
