"""What `lattice kernels status` says: which kernels would be used, or why none, and what lies in the home.

Knows where to ask; decides nothing and compiles nothing.

Thread: any (mlx runs on the calling one)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_cli import console
from lattice_cli.errors import LatticeError
from lattice_cli.settings import Home

if TYPE_CHECKING:
    from lattice_cli.kernels.native_choice import Outlook
    from lattice_cli.kernels.shelf import Entry


@dataclass(frozen=True, slots=True)
class Status:
    """What would be computed with, and what lies in the home. `following`: `threads` is the most, and fewer where
    others want the cores.
    """

    found: Outlook
    mode: str
    threads: int
    following: bool
    folder: Path
    entries: tuple[Entry, ...]

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries)


def read_status(home: Home) -> Status:
    """Ask everything; compiles nothing. Cost: 0.2 s."""
    from lattice_cli.kernels import shelf
    from lattice_cli.kernels.limits import usable_cores

    entries = tuple(shelf.entries(shelf.kept(home)))
    threads = home.threads or usable_cores()
    return Status(_look(home), home.kernels, threads, home.threads is None, shelf.kept(home), entries)


def _look(home: Home) -> Outlook:
    from lattice_cli.kernels import blas, native_choice, platform

    try:
        blas.preload(home)
        platform.check_platform()
    except LatticeError as error:
        return native_choice.Outlook(None, None, error.message, error.hint, lacking=True)
    return native_choice.look(home)


def rows(status: Status) -> list[tuple[str, str]]:
    """What is printed, line by line."""
    found = status.found
    threads = f"at most {status.threads}, as cores are free" if status.following else f"{status.threads}, always"
    return [
        ("kernels", found.reason if found.file else f"none: {found.reason}"),
        *([("module", str(found.file))] if found.file else []),
        *([("hint", found.hint)] if found.hint else []),
        ("instructions", found.isa or "-"),
        ("mode", status.mode),
        ("threads", threads),
        ("kept in", str(status.folder)),
        ("size", console.megabytes(status.nbytes)),
    ]


def record(status: Status) -> dict[str, Any]:
    """The same for programs."""
    found = status.found
    return {
        "module": str(found.file) if found.file else None,
        "reason": found.reason,
        "hint": found.hint,
        "instructions": found.isa,
        "mode": status.mode,
        "threads": status.threads,
        "threads_fixed": not status.following,
        "kept_in": str(status.folder),
        "kept_bytes": status.nbytes,
        "kept": [
            {"key": entry.key, "bytes": entry.nbytes, "mlx": entry.mlx or None, "state": _state(entry)}
            for entry in status.entries
        ],
    }


def _state(entry: Entry) -> str:
    if not entry.made:
        return "failed" if entry.failed else "unfinished"
    return "fits" if entry.fits else "other"


def cells(status: Status) -> list[tuple[str, str, str, str]]:
    """Key, size, what it was made for and its state, for each folder of the home."""
    return [
        (entry.key[:12], console.megabytes(entry.nbytes), f"mlx {entry.mlx or '?'}", _state(entry))
        for entry in status.entries
    ]
