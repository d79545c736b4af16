"""The thread: every ticket is answered, whatever happens to it.

Thread: any
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from lattice_cli.engine.engine import Engine
from lattice_cli.engine.open import OpenEngine
from lattice_cli.engine.worker import EngineWorker, State, Ticket
from lattice_cli.errors import BrokenWeights, EngineUnavailable, LatticeError, Overloaded
from lattice_cli.events import Event, Failed, Finished
from lattice_cli.settings import EngineSettings
from tests.engine.fake import CountingBackend, counted, job, text_of
from tests.engine.letters import LETTERS

pytestmark = pytest.mark.pure

WAIT_S = 5.0
SETTINGS = EngineSettings(max_rows=2, max_pending=1)


class GatedBackend(CountingBackend):
    """Stands still in `advance` until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def advance(self):  # type: ignore[no-untyped-def]
        assert self.gate.wait(WAIT_S)
        return super().advance()


def opener(backend: CountingBackend) -> Callable[[], OpenEngine]:
    return lambda: OpenEngine(LETTERS, Engine(LETTERS, backend, SETTINGS))


def started(backend: CountingBackend) -> EngineWorker:
    worker = EngineWorker(opener(backend), SETTINGS)
    worker.start()
    assert worker.wait_ready(WAIT_S) is LETTERS
    return worker


def read(ticket: Ticket) -> list[Event]:
    events: list[Event] = []
    while not ticket.done:
        event = ticket.next(WAIT_S)
        assert event is not None, "an answer in time"
        events.append(event)
    return events


def test_a_ticket_carries_the_events_of_all_its_jobs_and_then_is_done() -> None:
    worker = started(CountingBackend())
    ticket = worker.submit([job("a"), job("b", prompt_tokens=4)])
    events = read(ticket)
    assert text_of(events, "a") == counted(3, 5)
    assert text_of(events, "b") == counted(4, 5)
    assert ticket.next(0.0) is None
    assert worker.idle()
    assert worker.stop()
    assert worker.state is State.STOPPED


def test_a_full_waiting_room_refuses_and_a_finished_ticket_makes_room() -> None:
    """Report 101: overload must show at once, not as endless waiting."""
    backend = GatedBackend()
    worker = started(backend)
    tickets = [worker.submit([job(str(index))]) for index in range(3)]
    with pytest.raises(Overloaded) as refused:
        worker.submit([job("late")])
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    backend.gate.set()
    for ticket in tickets:
        assert isinstance(read(ticket)[-1], Finished)
    assert isinstance(read(worker.submit([job("again")]))[-1], Finished)
    assert worker.stop()


def test_cancel_is_heard_between_steps_and_may_be_said_twice() -> None:
    backend = GatedBackend()
    worker = started(backend)
    ticket = worker.submit([job("a", max_tokens=1_000_000)])
    ticket.cancel()
    ticket.cancel()
    backend.gate.set()
    end = read(ticket)[-1]
    assert isinstance(end, Finished)
    assert end.reason == "cancelled"
    assert worker.stop()


def test_draining_refuses_new_work_and_finishes_the_old() -> None:
    backend = GatedBackend()
    worker = started(backend)
    ticket = worker.submit([job("a")])
    worker.drain()
    with pytest.raises(EngineUnavailable, match="shutting down"):
        worker.submit([job("b")])
    backend.gate.set()
    assert isinstance(read(ticket)[-1], Finished)
    assert worker.stop()


def test_stopping_answers_running_and_waiting_jobs() -> None:
    backend = GatedBackend()
    worker = started(backend)
    tickets = [worker.submit([job(name, max_tokens=1_000_000)]) for name in "abc"]
    backend.gate.set()
    assert worker.stop()
    for ticket in tickets:
        end = read(ticket)[-1]
        assert isinstance(end, Failed)
        assert isinstance(end.error, EngineUnavailable)
    assert backend.closed


def test_a_load_that_fails_gives_its_own_error_and_the_worker_is_broken() -> None:
    def broken() -> OpenEngine:
        raise BrokenWeights("`model.safetensors` is cut short")

    told: list[LatticeError] = []
    worker = EngineWorker(broken, SETTINGS)
    worker.on_broken = told.append
    worker.start()
    with pytest.raises(BrokenWeights, match="cut short"):
        worker.wait_ready(WAIT_S)
    assert worker.stop()
    assert worker.state is State.BROKEN
    assert [error.message for error in told] == ["`model.safetensors` is cut short"]


def test_submitting_while_loading_is_refused_and_stopping_then_needs_no_model() -> None:
    gate = threading.Event()

    def slow() -> OpenEngine:
        assert gate.wait(WAIT_S)
        return opener(CountingBackend())()

    worker = EngineWorker(slow, SETTINGS)
    worker.start()
    with pytest.raises(EngineUnavailable, match="loading"):
        worker.submit([job("a")])
    assert not worker.stop(timeout_s=0.01)
    gate.set()
    assert worker.stop()


def test_requests_that_fault_every_time_do_not_break_the_engine() -> None:
    """Never die on input: ten poisoned requests in a row, and the next one is served."""
    backend = CountingBackend(
        lambda rows: RuntimeError("poison") if any(row.job.id.startswith("bad") for row in rows) else None
    )
    worker = started(backend)
    for index in range(10):
        assert isinstance(read(worker.submit([job(f"bad{index}")]))[-1], Failed)
    assert text_of(read(worker.submit([job("good")])), "good") == counted(3, 5)
    assert worker.state is State.READY
    assert worker.stop()


def test_an_engine_that_makes_no_tokens_any_more_is_broken_and_says_so() -> None:
    told: list[LatticeError] = []
    worker = started(CountingBackend(lambda rows: RuntimeError("device lost")))
    worker.on_broken = told.append
    for index in range(3):
        (*_, end) = read(worker.submit([job(str(index))]))
        assert isinstance(end, Failed)
    worker._thread.join(WAIT_S)
    assert worker.state is State.BROKEN
    assert [error.message for error in told] == ["the engine failed: device lost"]
    with pytest.raises(EngineUnavailable, match="must be restarted"):
        worker.submit([job("late")])


def test_a_bug_in_the_engine_itself_answers_every_ticket() -> None:
    class Buggy(Engine):
        def reset(self, fault: Exception) -> list[Event]:
            raise TypeError("a bug of ours")

    backend = CountingBackend(lambda rows: RuntimeError("x"))
    worker = EngineWorker(lambda: OpenEngine(LETTERS, Buggy(LETTERS, backend, SETTINGS)), SETTINGS)
    worker.start()
    worker.wait_ready(WAIT_S)
    end = read(worker.submit([job("a"), job("b")]))[-1]
    assert isinstance(end, Failed)
    worker._thread.join(WAIT_S)
    assert worker.state is State.BROKEN
    assert worker.idle()
