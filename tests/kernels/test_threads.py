"""How many threads multiply: as many as there are free cores.

Thread: any
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lattice_cli.kernels.threads import INTERVAL_S, BlasThreads, Others

pytestmark = pytest.mark.pure


class Library:
    def __init__(self) -> None:
        self.counts: list[int] = []

    def openblas_set_num_threads(self, count: int) -> None:
        self.counts.append(count)


def test_a_core_that_somebody_wants_is_left_to_them_and_taken_back() -> None:
    """Spinning threads on every core made answers ten times slower beside one busy process."""
    library, busy, now_s = Library(), [0, 1, 1, 5, 0], [0.0]
    threads = BlasThreads(library, 4, others=lambda: busy.pop(0), clock=lambda: now_s[0])  # type: ignore[arg-type]
    for _ in range(5):
        threads.fit()
        now_s[0] += INTERVAL_S
    assert library.counts == [4, 3, 1, 4]


def test_a_look_is_taken_seldom() -> None:
    looks = []
    threads = BlasThreads(Library(), 4, others=lambda: looks.append(1) or 0, clock=lambda: 5.0)  # type: ignore[arg-type]
    for _ in range(100):
        threads.fit()
    assert len(looks) == 1


class Accounts:
    """A /proc/stat that other processes and we spend time in, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.now_s = self.own_s = self.others_s = 0.0
        self._file = folder / "stat"
        self.write()

    def write(self) -> None:
        ticks = round((self.own_s + self.others_s) * os.sysconf("SC_CLK_TCK"))
        idle = round(self.now_s * 100)
        self._file.write_text(f"cpu  {ticks - ticks // 2} 0 {ticks // 2} {idle} 3 0 0 0 0 0\ncpu0 1 2 3\n")

    def spend(self, seconds: float, own: float, others: float) -> None:
        self.now_s += seconds
        self.own_s += own
        self.others_s += others
        self.write()


def test_what_others_want_is_the_time_they_had_and_not_who_runs_just_now(tmp_path: Path) -> None:
    """A client on this machine wakes with every token: seen at that moment it took a core away for nothing."""
    accounts = Accounts(tmp_path)
    others = Others(tmp_path, own_s=lambda: accounts.own_s, clock=lambda: accounts.now_s)
    seen = []
    for own, other in ((1.0, 0.03), (0.7, 0.3), (0.5, 0.5), (0.0, 0.0)):
        accounts.spend(0.5, own, other)
        seen.append(others())
    assert seen == pytest.approx([0.06, 0.6, 1.0, 0.0], abs=0.05)


def test_where_linux_does_not_tell_nobody_else_runs(tmp_path: Path) -> None:
    others = Others(tmp_path)
    assert others() == 0.0
    (tmp_path / "stat").write_text("nonsense")
    assert others() == 0.0


def test_a_core_half_used_by_others_stays_ours_and_one_they_keep_busy_does_not() -> None:
    library, busy, now_s = Library(), [0.06, 0.5, 0.7, 1.0, 2.6, 0.0], [0.0]
    threads = BlasThreads(library, 2, others=lambda: busy.pop(0), clock=lambda: now_s[0])  # type: ignore[arg-type]
    for _ in range(6):
        threads.fit()
        now_s[0] += INTERVAL_S
    assert library.counts == [2, 1, 2]
