"""How many cores and how much memory this process may use, containers' limits respected.

Knows Linux's affinity and cgroups; knows no mlx. A limit that cannot be read is no limit.

Thread: any
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CGROUPS = Path("/sys/fs/cgroup")


def usable_cores(cgroups: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Cores this process may keep busy: its affinity, or a cgroup's quota where that is less."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quotas = [_cpu_quota(folder) for folder in _groups("cpu", cgroups, membership)]
    return max(1, min(cores, *(math.ceil(quota) for quota in quotas if quota), cores))


def memory_bytes(cgroups: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> int:
    """The machine's memory, or a cgroup's limit where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = ("memory.max", "memory.limit_in_bytes")
    folders = _groups("memory", cgroups, membership)
    limits = [_number(folder / name) for folder in folders for name in names]
    return min(total, *(int(limit) for limit in limits if limit), total)


def default_cache_bytes() -> int:
    """How much memory the prefix cache has where nobody says: a quarter of that which states lie in."""
    return device_bytes() // 4


def device_bytes() -> int:
    """The memory that a network and its states lie in: the GPU's where it has its own."""
    mx: Any = sys.modules.get("mlx.core")
    info = mx.device_info() if hasattr(mx, "device_info") else {}  # a broken mlx may be there in part
    device = next((int(info[name]) for name in ("memory_size", "total_memory") if info.get(name)), None)
    return memory_bytes() if device is None else device


def give_back_memory() -> None:
    """Return what the allocator keeps of freed memory to the system, where glibc can: 45 MB after loading
    smollm2-135m from a GGUF file. Cost: milliseconds.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # another C library, or none that can be asked
        return


def _groups(controller: str, cgroups: Path, membership: Path) -> Iterator[Path]:
    """The folders of this process's cgroup and its ancestors, version 2 and 1; missing ones included."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        root = cgroups / controller if controllers else cgroups
        group = root / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder == root or root in folder.parents)


def _cpu_quota(folder: Path) -> float | None:
    """Cores a cgroup's quota allows; None without a quota."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        limit, window = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        return limit / window if limit and limit > 0 and window else None
    return None if quota == "max" else int(quota) / int(period)


def _number(file: Path) -> float | None:
    try:
        return float(file.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None
