"""What `lattice pull` put into the models folder: a marker file in each model, and what may be removed.

The folder may be shared with Rust Lattice and with the user's own models: a folder without our marker
is never changed. Knows files and sizes; opens no weights.

Thread: any
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from lattice_cli.errors import ModelError

MARKER = ".lattice-pull.json"
PARTIAL = ".partial"  # under the models folder: what an interrupted pull left, and the lock files
LAYOUT = 1


@dataclass(frozen=True, slots=True)
class PulledFile:
    """One file of a model. `sha256` in hex."""

    name: str
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Pull:
    """What was pulled: `source` is `index:PROJECT` or `hub:ORG/REPO`, `revision` a version or a commit,
    `pulled_at` UTC in ISO 8601.
    """

    name: str
    source: str
    revision: str
    licence: str | None
    files: tuple[PulledFile, ...]
    pulled_at: str


def write_marker(folder: Path, pull: Pull) -> None:
    """Mark `folder` as pulled by us."""
    text = json.dumps({"lattice_pull": LAYOUT, **asdict(pull)}, indent=1)
    (folder / MARKER).write_text(text + "\n", encoding="utf-8")


def read_marker(folder: Path) -> Pull | None:
    """What was pulled into `folder`; None where we did not pull it or the marker cannot be read."""
    try:
        said = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        if said.pop("lattice_pull") != LAYOUT:
            return None
        return Pull(**{**said, "files": tuple(PulledFile(**file) for file in said["files"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_complete(folder: Path) -> bool:
    """Whether `folder` was pulled by us and still holds every file at its size."""
    pull = read_marker(folder)
    return pull is not None and all(_size(folder / file.name) == file.nbytes for file in pull.files)


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def partial_bytes(models: Path, folder_name: str) -> int:
    """How much an interrupted pull left of that model, in bytes."""
    return folder_bytes(models / PARTIAL / folder_name)


def folder_bytes(folder: Path) -> int:
    """Size of all files under `folder`, 0 where there is none."""
    return sum(_size(path) or 0 for path in folder.rglob("*"))


def remove(models: Path, folder_name: str) -> list[str]:
    """Remove a pulled model and what an interrupted pull left of it; gives the names of files left behind.

    Only files that we pulled go; a file that somebody added keeps the folder. A model is renamed out of
    sight first, so that it is never seen in half.
    Raises: ModelError where the folder is not ours.
    """
    folder, area = models / folder_name, models / PARTIAL / folder_name
    with pull_lock(models, folder_name):
        pull = read_marker(folder)
        if os.path.lexists(folder) and (pull is None or folder.is_symlink()):
            raise ModelError(f"`{folder}` was not pulled by lattice, so it is left as it is", hint="remove it yourself")
        shutil.rmtree(area, ignore_errors=True)
        if pull is None:
            return []
        ours = {MARKER, *(file.name for file in pull.files)}
        others = sorted(path.name for path in folder.iterdir() if path.name not in ours)
        if not others:
            folder.rename(area)
            shutil.rmtree(area)
        else:
            for name in sorted(ours, key=lambda name: name == MARKER):  # the marker last
                (folder / name).unlink(missing_ok=True)
        return others


@contextmanager
def pull_lock(models: Path, folder_name: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the one right to change a model's folder, between processes and threads; `waiting` is called
    once where another holds it. The kernel frees it with the process. The lock file stays: removing it
    while another waits would give the right twice.
    """
    import fcntl

    area = models / PARTIAL
    area.mkdir(parents=True, exist_ok=True)
    with (area / f"{folder_name}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
