"""Joules, where the machine tells: RAPL's counters on Linux, nvidia-smi's power, powermetrics on a Mac (as root).

What is counted is a package or a board, with everything else that ran on it. A machine that tells nothing gives a
reason and no number.

Thread: any
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

POWERCAP = Path("/sys/class/powercap")
NVIDIA = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits", "-lms", "100")
POWERMETRICS = ("powermetrics", "--samplers", "cpu_power,gpu_power", "-i", "100")
_COMBINED = re.compile(r"Combined Power \(CPU \+ GPU \+ ANE\): (\d+(?:\.\d+)?) mW")


class Meter(Protocol):
    """Something that tells energy. `source` says what it is."""

    source: str

    def begin(self) -> None:
        """Count from here."""

    def end(self) -> float | None:
        """Joules since `begin`; None where nothing was told."""


class Rapl:
    """Energy counters of processor packages, in microjoules; they run over."""

    source = "RAPL, processor packages"

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones = [zone for zone in sorted(root.glob("*:*")) if zone.name.count(":") == 1 and _reads(zone)]
        self._before: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._zones)

    def begin(self) -> None:
        self._before = [_counter(zone, "energy_uj") for zone in self._zones]

    def end(self) -> float | None:
        total = 0
        for zone, before in zip(self._zones, self._before, strict=True):
            used = _counter(zone, "energy_uj") - before
            total += used if used >= 0 else used + _counter(zone, "max_energy_range_uj")
        return total / 1e6


class PowerLog:
    """A command that prints watts while it runs; joules are their mean times the time."""

    def __init__(
        self,
        source: str,
        command: Sequence[str],
        read: Callable[[str], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self._command, self._read, self._clock = command, read, clock

    def begin(self) -> None:
        self._watts: list[float] = []
        self._began_s = self._clock()
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
        )
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            watts = self._read(line)
            if watts is not None:
                self._watts.append(watts)

    def end(self) -> float | None:
        seconds = self._clock() - self._began_s
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return sum(self._watts) / len(self._watts) * seconds if self._watts else None


@dataclass(frozen=True, slots=True)
class Meters:
    """What tells energy here; without any, `reason` says why."""

    meter: Meter | None
    reason: str = ""


def find_meter(backend: str | None, root: Path = POWERCAP) -> Meters:
    """The meter of what computes: `backend` is mlx's ("cpu", "cuda", "metal"). Cost: a few milliseconds."""
    if backend == "cuda":
        return Meters(PowerLog("nvidia-smi, the whole board", NVIDIA, _number))
    if sys.platform == "darwin":
        if os.geteuid() != 0:
            return Meters(None, "powermetrics tells energy to root alone")
        return Meters(PowerLog("powermetrics, CPU and GPU together", POWERMETRICS, _combined))
    rapl = Rapl(root)
    if rapl:
        return Meters(rapl)
    return Meters(None, "RAPL's counters cannot be read" if root.is_dir() else "this machine has no RAPL")


def _number(line: str) -> float | None:
    try:
        return float(line)
    except ValueError:
        return None


def _combined(line: str) -> float | None:
    found = _COMBINED.search(line)
    return float(found[1]) / 1000 if found else None


def _reads(zone: Path) -> bool:
    try:
        _counter(zone, "energy_uj")
    except (OSError, ValueError):
        return False
    return True


def _counter(zone: Path, name: str) -> int:
    return int((zone / name).read_text())
