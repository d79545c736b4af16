"""How large a chunk may be, against a machine with costs of its own.

Thread: any
"""

from __future__ import annotations

import pytest

from lattice_cli.engine.pace import (
    BUSY_STEPS,
    CROWD_S,
    CROWD_STEPS,
    FEWEST_TOKENS,
    LONE_STEPS,
    SAVED_STEPS,
    Pace,
    Rhythm,
)

pytestmark = pytest.mark.pure


class Machine:
    """A pass costs `weights_s` and `token_s` a token; rows cost `row_s` each."""

    def __init__(self, weights_s: float, token_s: float, row_s: float = 0.0) -> None:
        self.weights_s, self.token_s, self.row_s = weights_s, token_s, row_s

    def step_s(self, rows: int) -> float:
        return self.weights_s + rows * self.row_s if rows else 0.0

    def chunk_s(self, tokens: int) -> float:
        return self.weights_s + tokens * self.token_s if tokens else 0.0

    def run(self, pace: Pace, rows: int, cycles: int = 40, *, full: bool = False) -> list[int]:
        """Cycles of a step and a chunk; the chunks."""
        chunks = []
        for _ in range(cycles):
            chunks.append(pace.chunk(rows, full=full))
            pace.took(self.step_s(rows) + self.chunk_s(chunks[-1]), max(1, rows), chunks[-1], int(rows > 0))
        return chunks

    def steps(self, pace: Pace, rows: int, count: int = 20) -> None:
        for _ in range(count):
            pace.took(self.step_s(rows), rows, 0, 1)


MACHINES = [Machine(0.004, 0.0004), Machine(0.02, 0.00005, 0.0002), Machine(0.1, 0.02)]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("rows", [1, 4])
def test_beside_running_replies_a_chunk_costs_them_no_more_than_it_may(machine: Machine, rows: int) -> None:
    """A stream's tokens must come less than three times as far apart as they do with nobody beside it."""
    pace = Pace(2048)
    machine.run(pace, 0)
    machine.steps(pace, rows)
    costs = [machine.chunk_s(tokens) / machine.step_s(rows) for tokens in machine.run(pace, rows, 100)[20:]]
    least = machine.chunk_s(FEWEST_TOKENS) / machine.step_s(rows)
    assert sum(costs) / len(costs) <= max(BUSY_STEPS * 1.05, least)
    assert sorted(costs)[int(len(costs) * 0.95)] <= max(2.0, least)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_short_newcomer_beside_a_reply_is_read_at_once(machine: Machine) -> None:
    """At the steady pace its 20 tokens would take many steps, where it may wait for three."""
    pace = Pace(2048)
    machine.run(pace, 0, 10)
    machine.steps(pace, 1)
    first = pace.chunk(1, full=False)
    assert machine.chunk_s(first) >= 0.5 * SAVED_STEPS * machine.step_s(1) or machine.token_s > 0.01
    assert machine.chunk_s(first) <= SAVED_STEPS * machine.step_s(1) * 1.1
    assert machine.run(pace, 1, 10)[-1] < first or first == FEWEST_TOKENS


@pytest.mark.parametrize("machine", MACHINES)
def test_while_nobody_is_heard_a_chunk_is_longer_and_still_bounded(machine: Machine) -> None:
    pace = Pace(2048)
    machine.steps(pace, 1)
    (*_, alone) = machine.run(pace, 0)
    (*_, beside) = machine.run(pace, 1)
    assert machine.chunk_s(alone) <= LONE_STEPS * machine.step_s(1) * 1.1 or alone == FEWEST_TOKENS
    assert alone >= beside


def test_where_requests_meet_chunks_are_short_for_a_while() -> None:
    machine, pace = Machine(0.004, 0.0004), Pace(2048)
    machine.steps(pace, 1)
    lone = machine.run(pace, 0)[-1]
    pace.met(100.0)
    assert pace.chunk(0, full=False, now_s=101.0) == pytest.approx(lone * CROWD_STEPS / LONE_STEPS, abs=1)
    assert pace.chunk(0, full=False, now_s=101.0 + CROWD_S) == lone


def test_where_nobody_can_come_chunks_are_as_long_as_is_efficient() -> None:
    pace = Pace(512)
    assert set(Machine(0.004, 0.0004).run(pace, 0, full=True)) == {512}


def test_what_was_asked_for_holds_until_a_reply_is_made() -> None:
    pace, machine = Pace(300, fixed=True), Machine(0.004, 0.0004)
    assert set(machine.run(pace, 0)) == {300}
    machine.steps(pace, 1)
    assert machine.run(pace, 1)[-1] < 30


def test_never_more_than_the_most_and_never_none() -> None:
    assert Machine(0.0001, 1e-7).run(Pace(4), 0, full=False)[-1] == 4
    pace = Pace(4)
    pace.took(1e-12, 1, 0, 1)
    pace.took(10.0, 1, 1, 0)
    assert pace.chunk(1, full=False) == FEWEST_TOKENS


def test_a_first_chunk_that_was_compiled_is_forgotten_soon() -> None:
    machine, pace = Machine(0.01, 0.0001), Pace(512)
    machine.steps(pace, 1)
    pace.took(3.0, 1, 64, 0)
    assert machine.run(pace, 0, 25)[-1] > 300


def test_a_neighbour_of_a_moment_hardly_changes_the_chunk() -> None:
    machine, pace = Machine(0.004, 0.0004), Pace(512)
    machine.steps(pace, 1)
    before = machine.run(pace, 1)[-1]
    pace.took(1.0, 1, before, 1)
    assert machine.run(pace, 1, 3)[-1] >= before * 0.4


def test_a_step_with_other_rows_is_guessed_from_those_that_were_measured() -> None:
    pace = Pace(10_000)
    pace.took(0.08, 8, 0, 1)
    pace.took(0.1, 1, 1000, 0)  # 0.1 ms a token
    assert pace.chunk(1, full=False) == pytest.approx(SAVED_STEPS * 100, abs=2)  # an eighth, at least
    assert pace.chunk(16, full=False) == pytest.approx(SAVED_STEPS * 808, abs=2)  # as if 8 tokens more


def test_a_crowd_that_never_decodes_alone_is_seen_nevertheless() -> None:
    """Only a step of one row was ever seen; 12 rows cost seven times as much. Taken for the chunk's cost, that makes
    chunks of 3 tokens for ever.
    """
    pace = Pace(2048)
    rhythm, now_s, free_s, chunks = Rhythm(pace), 0.0, 0.0, []
    for cycle in range(120):
        rows = 1 if cycle < 20 else 12
        rhythm.begin(now_s)
        began_s, made_s = now_s, free_s
        tokens = pace.chunk(rows, full=False) if cycle >= 18 else 0
        pass_s = 0.0012 + 0.0016 * rows + 0.0004 * tokens
        free_s = max(now_s, free_s) + pass_s
        now_s = free_s if tokens else max(now_s, made_s)  # what was read is waited for
        rhythm.end(began_s, rows, tokens)
        if rows > 1:
            chunks.append(tokens)
    step_s = 0.0012 + 0.0016 * 12
    assert sorted(chunks[20:])[40] * 0.0004 == pytest.approx(BUSY_STEPS * step_s, rel=0.15)
    assert chunks[20:].count(0) <= 4  # steps without a chunk, so as to see them


class Ahead:
    """A backend that is one step ahead, on a clock: what `Rhythm` sees of a device that works in order."""

    def __init__(self, machine: Machine, pace: Pace) -> None:
        self.machine, self.pace, self.rhythm = machine, pace, Rhythm(pace)
        self.now_s = self.free_s = 0.0
        self.made_s = 0.0  # when the tokens of the newest step are there

    def cycle(self, rows: int, tokens: int, late_s: float = 0.0) -> None:
        """`late_s`: how long somebody else has the thread's core afterwards."""
        self.rhythm.begin(self.now_s)
        began_s = self.now_s
        if rows:
            before_s = self.made_s
            self.free_s = self.made_s = max(self.now_s, self.free_s) + self.machine.step_s(rows)
            self.now_s = max(self.now_s, before_s)
        if tokens:
            self.now_s = self.free_s = max(self.now_s, self.free_s) + self.machine.chunk_s(tokens)
        self.rhythm.end(began_s, rows, tokens)
        self.now_s += late_s


def test_steps_and_tokens_are_told_apart_though_steps_are_handed_out_late() -> None:
    machine, pace = Machine(0.004, 0.0004), Pace(1000)
    device = Ahead(machine, pace)
    for rows, tokens in [(0, 64)] * 4 + [(1, 0)] * 6 + [(1, 20), (1, 20), (1, 0), (1, 20), (1, 0), (1, 0), (1, 0)] * 4:
        device.cycle(rows, tokens)
    pace.took(0.08, 1, 0, 20)
    assert pace.chunk(1, full=False) * machine.chunk_s(20) / 20 == pytest.approx(SAVED_STEPS * 0.004, rel=0.1)


@pytest.mark.parametrize("late", [[(1, 0, 0.003), (1, 0, 0.0)], [(1, 10, 0.0), (1, 0, 0.0038), (1, 0, 0.0)]])
def test_a_step_that_ran_while_the_thread_was_kept_waiting_was_not_short(late: list[tuple[int, int, float]]) -> None:
    """Its cycle is next to nothing, which counted more than the long one before it. So steps seemed to take a third of
    what they took, prompts beside a stream were read three tokens at a time, and two clients got less than one.
    """
    machine, pace = Machine(0.004, 0.0004), Pace(1000)
    device = Ahead(machine, pace)
    for rows, tokens in [(0, 64)] * 4 + [(1, 0)] * 20:
        device.cycle(rows, tokens)
    for rows, tokens, late_s in late * 20:
        device.cycle(rows, tokens, late_s)
    for _ in range(4):
        device.cycle(1, 10)
    assert pace._costs.step_s(1) == pytest.approx(0.004, rel=0.15)


@pytest.mark.parametrize("cycles", [[(1, 20), (1, 0), (1, 0)], [(1, 0)], [(1, 20)], [(1, 20), (1, 0), (2, 0), (2, 0)]])
def test_every_step_earns_once(cycles: list[tuple[int, int]]) -> None:
    pace = Pace(1000)
    device, earned = Ahead(Machine(0.004, 0.0004), pace), []
    pace.earned = earned.append  # type: ignore[method-assign]
    for rows, tokens in [(1, 20), *cycles * 10, (1, 20)]:
        device.cycle(rows, tokens)
    device.rhythm.begin(device.now_s)
    assert sum(earned) == 2 + 10 * len(cycles)


def test_a_rest_between_two_requests_is_no_slow_step() -> None:
    pace = Pace(1000)
    rhythm = Rhythm(pace)
    for began_s in (0.0, 0.0, 0.01, 0.02, 0.03):  # the first step is not waited for in its cycle
        rhythm.begin(began_s)
        rhythm.end(began_s, 1, 0)
    rhythm.rest()
    rhythm.begin(100.0)
    rhythm.end(100.0, 0, 10)
    rhythm.begin(100.01)  # 1 ms a token
    assert pace.chunk(1, full=False) == pytest.approx(SAVED_STEPS * 10, abs=2)


def test_where_short_chunks_cost_as_much_as_long_ones_they_are_rare() -> None:
    """As on a GPU: a chunk takes ten steps whatever its length."""
    pace = Pace(2048, fewest_tokens=512)
    for _ in range(20):
        pace.took(0.001, 1, 0, 1)
    chunks = 0
    for _ in range(100):
        if pace.rests:
            pace.took(0.001, 1, 0, 1)
            continue
        assert pace.chunk(1, full=False) >= 512
        pace.took(0.011, 1, 512, 1)
        chunks += 1
    assert 10 <= chunks <= 25
    assert not Pace(2048).rests and pace.chunk(0, full=False) >= 512


def test_a_crowd_that_waits_is_read_in_long_chunks() -> None:
    """One newcomer costs a stream little; six of them in small chunks would cost everybody more than they save."""
    pace = Pace(2048)
    for _ in range(20):
        pace.took(0.004, 2, 0, 1)
        pace.took(0.008, 2, 10, 1)
    one, six = pace.chunk(2, full=False, waiting=1), pace.chunk(2, full=False, waiting=6)
    assert six > 10 * one
