"""Cores and memory under containers' limits, read from made-up cgroup files.

Thread: any
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lattice_cli.kernels.limits import memory_bytes, usable_cores

pytestmark = pytest.mark.pure


def cgroup(tmp_path: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "membership").write_text(membership)
    return tmp_path / "groups", tmp_path / "membership"


def everything() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def test_without_cgroups_the_whole_machine_is_ours(tmp_path: Path) -> None:
    absent = (tmp_path / "groups", tmp_path / "membership")
    assert usable_cores(*absent) == everything()
    assert memory_bytes(*absent) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/\n", {"cpu.max": "100000 100000\n", "memory.max": "1000000\n"}),
        ("0::/a/b\n", {"a/cpu.max": "50000 100000\n", "a/b/cpu.max": "max 100000\n", "a/memory.max": "1000000\n"}),
        (
            "3:cpu,cpuacct:/box\n2:memory:/box\n",
            {
                "cpu/box/cpu.cfs_quota_us": "100000\n",
                "cpu/box/cpu.cfs_period_us": "100000\n",
                "memory/memory.limit_in_bytes": "1000000\n",
            },
        ),
    ],
)
def test_a_quota_of_this_group_or_an_ancestor_counts(tmp_path: Path, membership: str, files: dict[str, str]) -> None:
    where = cgroup(tmp_path, membership, files)
    assert usable_cores(*where) == 1
    assert memory_bytes(*where) == 1_000_000


@pytest.mark.parametrize("text", ["max 100000", "max", "", "nonsense"])
def test_a_limit_that_says_nothing_is_no_limit(tmp_path: Path, text: str) -> None:
    where = cgroup(tmp_path, "0::/\n", {"cpu.max": text, "memory.max": text})
    assert usable_cores(*where) == everything()
    assert memory_bytes(*where) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
