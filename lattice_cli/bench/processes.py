"""The processes of this machine: who descends from whom, what they have used, and how a whole tree is ended by pid.

Thread: any
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 5.0
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Process:
    """`used_s` is processor time; None where it is not told."""

    pid: int
    parent: int
    used_s: float | None = None


def processes(proc: Path = Path("/proc")) -> dict[int, Process]:
    """All that live, by pid; those that ended and that nobody asked after are left out."""
    if (proc / "self" / "stat").exists():
        found = (_read(file) for file in proc.glob("[0-9]*/stat"))
        return {one.pid: one for one in found if one is not None}
    lines = subprocess.run(("ps", "-axo", "pid=,ppid=,stat="), capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in lines.splitlines()]
    return {int(pid): Process(int(pid), int(parent)) for pid, parent, state in rows if not state.startswith("Z")}


def _read(file: Path) -> Process | None:
    try:
        pid, _, rest = file.read_text().partition(" (")
        fields = rest.rpartition(") ")[2].split()
    except OSError:  # it has just ended
        return None
    if fields[0] == "Z":
        return None
    return Process(int(pid), int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def tree(root: int) -> list[Process]:
    """`root` and all that descend from it, as far as they live."""
    living, found = processes(), []
    pids = {root}
    while pids:
        found += [living[pid] for pid in sorted(pids) if pid in living]
        pids = {one.pid for one in living.values() if one.parent in pids and one.pid != one.parent}
    return found


def end_tree(
    process: subprocess.Popen[bytes], grace_s: float = GRACE_S, clock: Callable[[], float] = time.monotonic
) -> None:
    """Ask a process and all its descendants to end, and make those end that do not within `grace_s`.

    The process must lead a session of its own, so that children whose parent is gone are found by its group.
    """
    known = {one.pid for one in tree(process.pid)}
    for number in (signal.SIGTERM, signal.SIGKILL):
        known |= {one.pid for one in tree(process.pid)}
        _signal_group(process.pid, number)
        for pid in known & processes().keys():
            _signal(pid, number)
        until_s = clock() + grace_s
        while process.poll() is None or known & processes().keys():
            if clock() > until_s:
                break
            time.sleep(LOOK_S)
        else:
            return


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return
