"""How many threads a BLAS may use right now: as many as there are cores nobody else is busy on.

PERF: OpenBLAS's threads wait for each other by spinning, so one core shared with another process stalls them
all: smollm2-135m on 2 cores reads a prompt at 320 tok/s with 2 threads on an idle machine, at 30-120 with 2
threads beside one busy process, and at 240 with 1 thread beside it. Always leaving a core free costs a
third on an idle 2-core machine; so it is left free only while somebody wants it.

What others want is measured as the processor time they had, over half a second. A look at who runs at this
moment would not do: a client on this machine wakes with every token it gets, just when we would look.

Knows Linux's accounts of processor time; knows no mlx.

Thread: worker
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

INTERVAL_S = 0.5  # fifty ticks of Linux's accounts on each core; a look costs about 50 us


class Others:
    """How many cores other processes kept busy since the last call; 0 where Linux does not tell."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        own_s: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stat = proc / "stat"
        self._own_s = own_s
        self._clock = clock
        self._last: tuple[float, float] | None = self._read()

    def __call__(self) -> float:
        last, self._last = self._last, self._read()
        if last is None or self._last is None or self._last[0] <= last[0]:
            return 0.0
        return max(0.0, (self._last[1] - last[1]) / (self._last[0] - last[0]))

    def _read(self) -> tuple[float, float] | None:
        """Now, and the seconds of processor time others have had until now."""
        try:
            user, nice, system, _, _, irq, softirq, steal = map(int, self._stat.read_text().split(maxsplit=9)[1:9])
        except (OSError, ValueError):
            return None
        ticks = user + nice + system + irq + softirq + steal  # steal: what another machine on this hardware had
        return self._clock(), ticks / os.sysconf("SC_CLK_TCK") - self._own_s()


class BlasThreads:
    """Sets a library's thread count between steps. `fit` is called often and looks seldom."""

    def __init__(
        self,
        library: ctypes.CDLL,
        cores: int,
        others: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`others` gives the cores that are not ours to use since it was last asked."""
        self._set: Callable[[int], object] = library.openblas_set_num_threads
        self._cores = cores
        self._others = others or Others()
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
        self._use(max(1, self._cores - round(self._others())))

    def _use(self, count: int) -> None:
        if count != self.count:
            self.count = count
            self._set(count)


def shows_our_cores(cores: int) -> bool:
    """Whether the accounts that Linux shows are about the cores we have; in a container it may be the host's."""
    return cores == os.cpu_count()
