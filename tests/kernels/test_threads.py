"""How many threads multiply: as many as there are free cores.

Thread: any
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice_cli.kernels.threads import INTERVAL_S, BlasThreads, others_running

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


def test_our_own_threads_are_not_others(tmp_path: Path) -> None:
    (tmp_path / "loadavg").write_text("1.20 0.80 0.50 4/321 777\n")
    for number, stat in enumerate(("1 (odd) R name) R 1 2", "2 (python) S 1 2", "3 (blas) R 1")):
        task = tmp_path / "self/task" / str(number)
        task.mkdir(parents=True)
        (task / "stat").write_text(stat)
    assert others_running(tmp_path) == 2


def test_where_linux_does_not_tell_nobody_else_runs(tmp_path: Path) -> None:
    assert others_running(tmp_path) == 0
    (tmp_path / "loadavg").write_text("nonsense")
    assert others_running(tmp_path) == 0
