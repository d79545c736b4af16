"""Who gets a slot, and how long anybody waits for one.

Thread: any
"""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from lattice_cli.engine.row import Row
from lattice_cli.engine.scheduler import Scheduler
from tests.engine.fake import job
from tests.engine.letters import LETTERS
from tests.samples import seeds

pytestmark = pytest.mark.pure


def row(name: str, prompt_tokens: int = 3) -> Row:
    return Row(job(name, prompt_tokens), LETTERS)


def names(rows: Collection[Row]) -> list[str]:
    return [one.job.id for one in rows]


def test_requests_of_one_row_are_served_first_come_first_served() -> None:
    scheduler = Scheduler(2)
    for name in "abcd":
        scheduler.add(row(name))
    assert names(scheduler.admit()) == ["a", "b"]
    assert not scheduler.can_admit()
    scheduler.remove("b")
    assert names(scheduler.admit()) == ["c"]
    assert names(scheduler.waiting) == ["d"]


def test_a_short_prompt_beside_a_long_one_gets_its_slot_at_once() -> None:
    """Rows in prefill once had to be of like length, as if they were padded to each other."""
    scheduler = Scheduler(4)
    scheduler.add(row("long", 4000))
    scheduler.add(row("short", 4))
    assert names(scheduler.admit()) == ["long", "short"]


def test_a_request_of_many_choices_takes_turns_with_the_next_one() -> None:
    scheduler = Scheduler(2)
    scheduler.add(*(row(f"n{index}") for index in range(5)))
    assert names(scheduler.admit()) == ["n0", "n1"]
    scheduler.add(row("late"))
    turns = []
    for name in ("n0", "n1", "n2"):
        scheduler.remove(name)
        turns += names(scheduler.admit())
    assert turns == ["n2", "late", "n3"]


def test_a_request_of_many_choices_goes_on_while_others_keep_coming() -> None:
    """It would never end if whoever comes were always served before its further choices."""
    scheduler = Scheduler(1)
    scheduler.add(row("n0"), row("n1"), row("n2"))
    served = []
    for number in range(8):
        scheduler.add(row(f"x{number}"))
        (admitted,) = names(scheduler.admit())
        served.append(admitted)
        scheduler.remove(admitted)
    assert served == ["n0", "x0", "n1", "x1", "x2", "n2", "x3", "x4"]


def test_what_fits_no_memory_now_is_passed_so_often_and_no_more() -> None:
    room = 10
    scheduler = Scheduler(2, lambda new, running: new.prompt_tokens + sum(r.prompt_tokens for r in running) <= room)
    scheduler.add(row("a", 6))
    assert names(scheduler.admit()) == ["a"]
    scheduler.add(row("big", 8))
    for name in "bcde":
        scheduler.add(row(name, 2))
    served = []
    while scheduler.can_admit():
        (admitted,) = names(scheduler.admit())
        served.append(admitted)
        scheduler.remove(admitted)
    assert served == ["b", "c"]  # two slots, two passes
    scheduler.remove("a")
    assert names(scheduler.admit()) == ["big", "d"]


@pytest.mark.parametrize("seed", seeds(50, sample=15))
def test_nobody_waits_for_more_slots_than_there_were_requests_before_it(seed: int) -> None:
    """With P requests in line before it, a request has its first slot when at most P + 1 have become free."""
    random_ = random.Random(seed)
    scheduler = Scheduler(random_.randint(1, 4))
    freed, came, before = 0, 0, dict[str, int]()
    freed_at: dict[str, int] = {}
    for _ in range(300):
        if random_.random() < 0.4:
            name = f"r{came}."
            came += 1
            before[name], freed_at[name] = len({one.split(".")[0] for one in names(scheduler.waiting)}), freed
            scheduler.add(*(row(f"{name}{choice}") for choice in range(random_.choice((1, 1, 2, 9)))))
        for admitted in scheduler.admit():
            name = admitted.job.id.split(".")[0] + "."
            if name in before:
                assert freed - freed_at.pop(name) <= before.pop(name) + 1
        if scheduler.running and random_.random() < 0.5:
            scheduler.remove(random_.choice(list(scheduler.running)))
            freed += 1
        if scheduler.waiting and random_.random() < 0.1:
            gone = random_.choice(scheduler.waiting).job.id
            scheduler.remove(gone)
    while len(scheduler):
        scheduler.admit()
        scheduler.remove(next(iter(scheduler.running)))
    assert scheduler.waiting == []
