"""How many threads a BLAS may use right now: as many as there are cores nobody else is busy on.

PERF: OpenBLAS's threads wait for each other by spinning, so one core shared with another process stalls them
all: smollm2-135m on 2 cores reads a prompt at 320 tok/s with 2 threads on an idle machine, at 30-120 with 2
threads beside one busy process, and at 240 with 1 thread beside it. Always leaving a core free costs a
third on an idle 2-core machine; so it is left free only while somebody wants it.

Knows Linux's run queue; knows no mlx.

Thread: worker
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

INTERVAL_S = 0.2  # a look costs 0.1-1 ms, growing with the threads of this process


def others_running(proc: Path = Path("/proc")) -> int:
    """Threads of other processes that run or want to run, now. 0 where Linux does not tell."""
    try:
        everyone = int((proc / "loadavg").read_text().split()[3].partition("/")[0])
        tasks = [(task / "stat").read_text() for task in (proc / "self/task").iterdir()]
    except (OSError, ValueError, IndexError):  # a thread may end between the list and the look
        return 0
    # The state follows the name, which is in brackets and may hold anything.
    own = sum(stat.rpartition(")")[2].split()[0] == "R" for stat in tasks)
    return max(0, everyone - own)


class BlasThreads:
    """Sets a library's thread count between steps. `fit` is called often and looks seldom."""

    def __init__(
        self,
        library: ctypes.CDLL,
        cores: int,
        others: Callable[[], int] = others_running,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._set: Callable[[int], object] = library.openblas_set_num_threads
        self._cores = cores
        self._others = others
        self._clock = clock
        self._next_look_s = float("-inf")
        self.count = 0
        self._use(cores)

    def fit(self) -> None:
        """Use the cores that are free now; always at least one."""
        now_s = self._clock()
        if now_s < self._next_look_s or self._cores == 1:
            return
        self._next_look_s = now_s + INTERVAL_S
        self._use(max(1, self._cores - self._others()))

    def _use(self, count: int) -> None:
        if count != self.count:
            self.count = count
            self._set(count)


def shows_our_cores(cores: int) -> bool:
    """Whether the run queue that Linux shows is about the cores we have; in a container it may be the host's."""
    return cores == os.cpu_count()
