"""Noise and energy, as fake accounts of a machine tell them.

Thread: any
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from lattice_cli.bench.energy import PowerLog, Rapl, find_meter
from lattice_cli.bench.noise import Watch
from tests.bench.clock import VirtualClock

pytestmark = pytest.mark.pure

TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """Two cores whose accounts are a file; `work` lets time pass in which others are busy."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.clock, self.own_s, self.busy_s = folder, VirtualClock(), 0.0, 0.0
        self.work(0, 0, 0)

    def work(self, seconds: float, ours: float, others: float) -> None:
        self.clock.sleep(seconds)
        self.own_s += ours * seconds
        self.busy_s += (ours + others) * seconds
        (self.proc / "stat").write_text(f"cpu {round(self.busy_s * TICKS)} 0 0 0 0 0 0 0 0 0\n")

    def watch(self, share: float = 0.1, sleep: object = None) -> Watch:
        given = sleep or self.clock.sleep
        return Watch(share, lambda: self.own_s, proc=self.proc, cores=2, clock=self.clock, sleep=given)  # type: ignore[arg-type]


def test_a_trial_in_which_others_used_more_than_the_share_is_noisy(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    watch = machine.watch()
    watch.begin()
    machine.work(10, ours=1.9, others=0.1)
    quiet = watch.end()
    watch.begin()
    machine.work(10, ours=1.5, others=0.5)
    noisy = watch.end()
    assert (quiet.others_cores, quiet.noisy) == (pytest.approx(0.1, abs=0.01), False)
    assert (noisy.others_cores, noisy.noisy) == (pytest.approx(0.5, abs=0.01), True)


def test_what_happened_between_two_trials_is_in_neither(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    watch = machine.watch()
    watch.begin()
    machine.work(5, 2, 0)
    assert not watch.end().noisy
    machine.work(100, 0, 2)
    watch.begin()
    machine.work(5, 2, 0)
    assert not watch.end().noisy


def test_quiet_is_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    busy = [2.0, 2.0, 0.0]
    watch = machine.watch(sleep=lambda seconds: machine.work(seconds, 0, busy.pop(0)))
    assert watch.begin(wait_s=60)
    assert busy == []
    busy = [2.0] * 100
    watch = machine.watch(sleep=lambda seconds: machine.work(seconds, 0, busy.pop(0)))
    assert not watch.begin(wait_s=10)
    assert len(busy) == 90


def test_where_nobody_tells_what_others_do_it_is_not_known_and_not_0(tmp_path: Path) -> None:
    watch = Watch(proc=tmp_path, cores=2)
    assert not watch.begin(wait_s=5)
    noise = watch.end()
    assert (noise.others_cores, noise.noisy) == (None, False)


def zone(root: Path, name: str, microjoules: int) -> Path:
    folder = root / name
    folder.mkdir(exist_ok=True)
    (folder / "energy_uj").write_text(str(microjoules))
    (folder / "max_energy_range_uj").write_text("1000000000")
    return folder


def test_rapl_counts_packages_once_and_over_their_range(tmp_path: Path) -> None:
    """A package's own parts are in its figure already."""
    zone(tmp_path, "intel-rapl:0", 1_000_000)
    zone(tmp_path, "intel-rapl:1", 999_000_000)
    zone(tmp_path, "intel-rapl:0:0", 5)
    rapl = Rapl(tmp_path)
    assert rapl
    rapl.begin()
    zone(tmp_path, "intel-rapl:0", 3_500_000)
    zone(tmp_path, "intel-rapl:1", 1_000_000)
    zone(tmp_path, "intel-rapl:0:0", 900_000_000)
    assert rapl.end() == pytest.approx(2.5 + 2.0)


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has powermetrics")
def test_a_machine_without_a_meter_has_a_reason_and_no_number(tmp_path: Path) -> None:
    assert find_meter("cpu", tmp_path / "none").reason == "this machine has no RAPL"
    (tmp_path / "intel-rapl:0").mkdir()
    found = find_meter("cpu", tmp_path)
    assert (found.meter, found.reason) == (None, "RAPL's counters cannot be read")


def test_a_power_log_is_its_mean_times_the_time() -> None:
    clock = VirtualClock()
    script = "print('10.0\\nnoise\\n30.0', flush=True); import time; time.sleep(60)"
    log = PowerLog(
        "a meter", [sys.executable, "-c", script], lambda line: float(line) if line[0].isdigit() else None, clock
    )
    log.begin()
    for _ in range(3000):
        if len(log._watts) >= 2:
            break
        threading.Event().wait(0.01)
    clock.sleep(5)
    assert log.end() == 100.0
    assert log._process.returncode is not None


def test_a_meter_that_tells_nothing_gives_no_number() -> None:
    log = PowerLog("a meter", [sys.executable, "-c", ""], lambda line: None)
    log.begin()
    assert log.end() is None
