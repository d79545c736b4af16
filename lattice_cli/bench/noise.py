"""What else a machine did while it was measured: its load average, and the cores that other processes kept busy.

Knows Linux's accounts of processor time; elsewhere the cores are None and said to be, never 0.

Thread: any
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lattice_cli.kernels.limits import usable_cores
from lattice_cli.kernels.threads import Others, shows_our_cores

LOOK_S = 1.0
NOISY_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Noise:
    """`others_cores` is the mean over the trial; `noisy` says that it is above the stated share of all cores."""

    load_1m: float | None
    others_cores: float | None
    noisy: bool


UNWATCHED = Noise(None, None, False)


class Watch:
    """Looks at the machine from trial to trial. `own_s` is the processor time of what is measured."""

    def __init__(
        self,
        share: float = NOISY_SHARE,
        own_s: Callable[[], float] = time.process_time,
        *,
        proc: Path = Path("/proc"),
        cores: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cores = usable_cores() if cores is None else cores
        self._known = (proc / "stat").is_file() and (cores is not None or shows_our_cores(self._cores))
        self._others = Others(proc, own_s, clock)
        self._limit = share * self._cores
        self._clock, self._sleep = clock, sleep

    def begin(self, wait_s: float = 0.0) -> bool:
        """Before a trial: waits up to `wait_s` until a second of quiet was seen, then counts anew. Whether it was."""
        until_s = self._clock() + wait_s
        quiet = False
        while self._known and not quiet and self._clock() < until_s:
            self._others()
            self._sleep(LOOK_S)
            quiet = self._others() <= self._limit
        self._others()
        return quiet

    def end(self) -> Noise:
        """After it."""
        load_1m = round(os.getloadavg()[0], 2)
        if not self._known:
            return Noise(load_1m, None, False)
        others = self._others()
        return Noise(load_1m, round(others, 3), others > self._limit)
