"""EngineWorker: the one thread that loads a model and owns every call on it; Ticket: what a door holds.

Messages in are a closed union; events out go to one queue a ticket. Whatever happens to the thread, every
ticket gets its terminal events.

Thread: any (EngineWorker.submit, Ticket); worker (everything that begins with _run)
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from lattice_cli.errors import EngineFault, EngineUnavailable, LatticeError, Overloaded
from lattice_cli.events import Event, Failed, Finished, Scored
from lattice_cli.job import Job, ScoreJob
from lattice_cli.model.card import ModelCard
from lattice_cli.settings import EngineSettings

if TYPE_CHECKING:
    from lattice_cli.engine.engine import Engine
    from lattice_cli.engine.open import OpenEngine

log = logging.getLogger("lattice.engine")

FAULTS_TO_BREAK = 3
FAULT_WINDOW_S = 60.0


class State(Enum):
    """Where the worker is in its life; BROKEN and STOPPED are final."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Submit:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Cancel:
    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    pass


Message = Submit | Cancel | Stop


def new_job_id() -> str:
    """Unique in the world; 32 hex digits."""
    return uuid.uuid4().hex


class Ticket:
    """One submission: the events of its jobs, in order, on one queue. One reader; any thread may cancel."""

    def __init__(self, jobs: Sequence[Job | ScoreJob], send: Callable[[Message], None]) -> None:
        self.jobs = tuple(jobs)
        self._send = send
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._unread_ends = len(self.jobs)

    @property
    def done(self) -> bool:
        """Every job's terminal event has been read."""
        return self._unread_ends == 0

    def next(self, timeout_s: float | None = None) -> Event | None:
        """The next event, waiting at most `timeout_s` (None: as long as it takes).

        None when nothing came in time, and at once when `done`.
        """
        if self.done:
            return None
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(event, Finished | Failed | Scored):
            self._unread_ends -= 1
        return event

    def cancel(self) -> None:
        """Ask the engine to end these jobs; they end as `cancelled` within one step. Idempotent."""
        if not self.done:
            self._send(Cancel(tuple(job.id for job in self.jobs)))

    def deliver(self, event: Event) -> None:
        """Called by the worker only."""
        self._events.put(event)


class EngineWorker:
    """Owns the engine thread.

    LOADING -> READY -> DRAINING -> STOPPED, and BROKEN from anywhere. At most `max_rows` + `max_pending`
    tickets are open at once. The third fault within a minute with no reply finished between them asks a
    canary: a short job that must make a token; when it cannot, the worker is BROKEN.
    """

    def __init__(
        self, opener: Callable[[], OpenEngine], settings: EngineSettings, *, name: str = "lattice-engine"
    ) -> None:
        self._opener = opener
        self._max_open = settings.max_rows + settings.max_pending
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards state together with what may still be put into the inbox
        self._settled = threading.Event()
        self._tickets: dict[str, Ticket] = {}
        self._unfinished: dict[int, int] = {}  # id(ticket) -> jobs without a terminal event
        self._faults: deque[float] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.state = State.LOADING
        self.card: ModelCard | None = None
        self.error: LatticeError | None = None
        self.on_broken: Callable[[LatticeError], None] | None = None

    def start(self) -> None:
        """Start the thread, which loads the model first."""
        self._thread.start()

    def wait_ready(self, timeout_s: float | None = None) -> ModelCard:
        """The card of the loaded model. Blocks.

        Raises: what the load raised, or EngineUnavailable when it is stopped or not ready in time.
        """
        self._settled.wait(timeout_s)
        if self.error is not None:
            raise self.error
        if self.card is None:
            raise self.unavailable()
        return self.card

    def submit(self, jobs: Sequence[Job]) -> Ticket:
        """Queue jobs that one reader waits for. `submitted_s` is stamped here.

        Raises: EngineUnavailable (not READY), Overloaded (the waiting room is full).
        """
        now_s = time.monotonic()
        return self._submit(Ticket([replace(job, submitted_s=now_s) for job in jobs], self._inbox.put))

    def score(self, prompts: Sequence[tuple[int, ...]], top: int = 0) -> Ticket:
        """Have prompts read for the log-probabilities of their tokens: a `Scored` event for each, in order.

        Raises: as `submit`.
        """
        return self._submit(Ticket([ScoreJob(new_job_id(), ids, top) for ids in prompts], self._inbox.put))

    def _submit(self, ticket: Ticket) -> Ticket:
        with self._lock:
            if self.state is not State.READY:
                raise self.unavailable()
            if len(self._unfinished) >= self._max_open:
                raise Overloaded(
                    f"the server is busy: {self._max_open} requests are running or waiting", hint="try again later"
                )
            self._unfinished[id(ticket)] = len(ticket.jobs)
            self._inbox.put(Submit(ticket))
        return ticket

    def drain(self) -> None:
        """Refuse new work; what runs or waits goes on."""
        with self._lock:
            if self.state is State.READY:
                self.state = State.DRAINING

    def idle(self) -> bool:
        """No ticket is open."""
        with self._lock:
            return not self._unfinished

    def stop(self, timeout_s: float = 5.0) -> bool:
        """End everything and join the thread: open jobs fail with EngineUnavailable.

        False when the thread did not end in time (it may be inside a load, which nothing can interrupt).
        """
        self._inbox.put(Stop())
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def unavailable(self) -> EngineUnavailable:
        """Why nothing can be submitted in the state the worker is in."""
        told = {
            State.LOADING: "the model is still loading",
            State.READY: "the model is still loading",
            State.DRAINING: "the server is shutting down",
            State.STOPPED: "the server is shutting down",
            State.BROKEN: "the engine has failed and must be restarted",
        }
        return EngineUnavailable(told[self.state])

    # Below: the worker thread.

    def _run(self) -> None:
        opened: OpenEngine | None = None
        try:
            opened = self._opener()
            with self._lock:
                self.card, self.state = opened.card, State.READY
            self._settled.set()
            self._run_loop(opened)
        except LatticeError as error:
            self._run_break(error)
        except Exception as error:
            log.exception("the engine thread failed")
            self._run_break(EngineFault(f"the engine failed: {error}"))
        finally:
            self._run_end(opened)

    def _run_loop(self, opened: OpenEngine) -> None:
        engine = opened.engine
        while not self._run_messages(opened):
            try:
                events = engine.step()
            except Exception as fault:  # noqa: BLE001 - any fault of any row; the engine finds whose
                events = engine.reset(fault)
                self._run_deliver(events)
                self._run_weigh(fault, engine)
                continue
            self._run_deliver(events)
        self._run_deliver(engine.abort("the server is shutting down"))

    def _run_messages(self, opened: OpenEngine) -> bool:
        """Take the messages that are here, waiting for one when there is nothing to step. True: stop."""
        wait_s = opened.engine.ready_in_s()
        while True:
            try:
                message = self._inbox.get_nowait() if wait_s == 0 else self._inbox.get(timeout=wait_s)
            except queue.Empty:
                return False
            match message:
                case Stop():
                    return True
                case Submit(ticket):
                    self._tickets |= {job.id: ticket for job in ticket.jobs}
                    opened.engine.add(*(job for job in ticket.jobs if isinstance(job, Job)))
                    for job in ticket.jobs:
                        if isinstance(job, ScoreJob):
                            opened.engine.score(job)
                case Cancel(job_ids):
                    for job_id in job_ids:
                        self._run_deliver(opened.engine.cancel(job_id))
            wait_s = 0

    def _run_deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            ticket = self._tickets.get(event.job_id)
            if ticket is None:
                continue
            if isinstance(event, Finished | Failed | Scored):
                del self._tickets[event.job_id]
                self._run_close_one(ticket)
            if isinstance(event, Finished) and event.reason != "cancelled":
                self._faults.clear()
            ticket.deliver(event)

    def _run_close_one(self, ticket: Ticket) -> None:
        with self._lock:
            self._unfinished[id(ticket)] -= 1
            if not self._unfinished[id(ticket)]:
                del self._unfinished[id(ticket)]

    def _run_weigh(self, fault: Exception, engine: Engine) -> None:
        """Count a fault. After too many of them a canary decides: bad requests, or a broken engine."""
        now_s = time.monotonic()
        self._faults.append(now_s)
        while now_s - self._faults[0] > FAULT_WINDOW_S:
            self._faults.popleft()
        if len(self._faults) < FAULTS_TO_BREAK:
            return
        self._faults.clear()
        if not engine.alive():
            raise EngineFault("the engine makes no tokens any more") from fault

    def _run_break(self, error: LatticeError) -> None:
        log.debug("the engine is broken", exc_info=error)
        with self._lock:
            self.error, self.state = error, State.BROKEN

    def _run_end(self, opened: OpenEngine | None) -> None:
        """Answer every ticket, release the backend, say how it ended. Runs whatever happened."""
        with self._lock:
            if self.state is not State.BROKEN:
                self.state = State.STOPPED
        self._settled.set()
        unanswered = dict(self._tickets)
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, Submit):
                unanswered |= {job.id: message.ticket for job in message.ticket.jobs}
        self._tickets |= unanswered
        self._run_deliver([Failed(job_id, self.unavailable()) for job_id in unanswered])
        try:
            if self.error is not None and self.on_broken is not None:
                self.on_broken(self.error)
        finally:
            if opened is not None:
                opened.close()
