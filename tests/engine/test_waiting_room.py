"""How many requests are open, and when a refused one should come again.

Thread: any
"""

from __future__ import annotations

import threading

import pytest

from lattice_cli.engine.ticket import Ticket
from lattice_cli.engine.waiting_room import MOST_RETRY_S, WaitingRoom
from lattice_cli.errors import Overloaded
from tests.engine.fake import Clock, job

pytestmark = pytest.mark.pure


def ticket(*names: str) -> Ticket:
    return Ticket([job(name) for name in names], lambda message: None)


def retry_after_s(room: WaitingRoom) -> int:
    with pytest.raises(Overloaded, match="2 requests are running or waiting") as refused:
        room.enter(ticket("late"))
    assert refused.value.retry_after_s is not None
    return refused.value.retry_after_s


def test_a_request_is_one_place_whatever_its_choices() -> None:
    room = WaitingRoom(2)
    many, one = ticket("a", "b", "c"), ticket("d")
    room.enter(many)
    room.enter(one)
    assert (len(room), room.open_jobs) == (2, 4)
    with pytest.raises(Overloaded):
        room.enter(ticket("e"))
    for _ in range(2):
        room.job_ended(many)
    assert (len(room), room.open_jobs) == (2, 2)
    room.job_ended(many)
    room.enter(ticket("e"))


def test_retry_after_is_the_time_between_two_ends_of_late() -> None:
    """Report 101: a refusal says when a place is likely to be free."""
    clock = Clock()
    room = WaitingRoom(2, clock)
    held = [ticket("a"), ticket("b")]
    for one in held:
        room.enter(one)
    assert retry_after_s(room) == 1  # nothing is known yet
    for second in range(1, 6):
        clock.now_s = 4.0 * second
        room.job_ended(held.pop(0))
        held.append(ticket(str(second)))
        room.enter(held[-1])
    assert retry_after_s(room) == 4
    clock.now_s += 40.0  # since then nobody has ended
    assert retry_after_s(room) == 12
    clock.now_s += 10_000.0
    assert retry_after_s(room) == MOST_RETRY_S


def test_an_idle_hour_says_nothing_of_how_fast_requests_end() -> None:
    clock = Clock()
    room = WaitingRoom(2, clock)
    first = ticket("a")
    room.enter(first)
    clock.now_s = 1.0
    room.job_ended(first)
    clock.now_s = 3600.0
    for name in "bc":
        room.enter(ticket(name))
    assert retry_after_s(room) == 1


def test_whoever_waits_for_an_empty_room_is_told_at_once_and_not_for_ever() -> None:
    room, both = WaitingRoom(2), [ticket("a"), ticket("b")]
    assert room.wait_empty(0.0)
    for one in both:
        room.enter(one)
    assert not room.wait_empty(0.01)
    empty = threading.Event()
    waiter = threading.Thread(target=lambda: empty.set() if room.wait_empty(60.0) else None)
    waiter.start()
    room.job_ended(both[0])
    assert not empty.wait(0.05)
    room.job_ended(both[1])
    assert empty.wait(10.0)
    waiter.join()
