"""EngineWorker: the one thread that loads a model and owns every call on it. What it does turn by turn is in desk.py.

Whatever happens to the thread, every ticket gets its terminal events.

Thread: any (EngineWorker.submit and all that is public); worker (everything that begins with _run)
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from lattice_cli.engine.desk import Desk
from lattice_cli.engine.mailbox import Mailbox
from lattice_cli.engine.prefix_kept import CacheStats
from lattice_cli.engine.ticket import Cancel, Message, Stop, Submit, Ticket, new_job_id
from lattice_cli.engine.waiting_room import WaitingRoom
from lattice_cli.errors import EngineFault, EngineUnavailable, LatticeError
from lattice_cli.events import Event
from lattice_cli.job import Job, ScoreJob
from lattice_cli.model.card import ModelCard
from lattice_cli.settings import EngineSettings

if TYPE_CHECKING:
    from lattice_cli.engine.open import OpenEngine
    from lattice_cli.engine.prefix import PrefixCache

__all__ = ["Cancel", "EngineWorker", "Message", "State", "Stop", "Submit", "Ticket", "new_job_id"]

log = logging.getLogger("lattice.engine")


class State(Enum):
    """Where the worker is in its life; BROKEN and STOPPED are final."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    BROKEN = "broken"


class EngineWorker:
    """Owns the engine thread.

    LOADING -> READY -> DRAINING -> STOPPED, and BROKEN from anywhere. At most `max_rows` + `max_pending` tickets are
    open at once.
    """

    def __init__(
        self, opener: Callable[[], OpenEngine], settings: EngineSettings, *, name: str = "lattice-engine"
    ) -> None:
        self._opener = opener
        self._room = WaitingRoom(settings.max_rows + settings.max_pending)
        self._inbox: Mailbox[Message] = Mailbox()
        self._lock = threading.Lock()  # guards state together with what may still be put into the inbox
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._turn_began_s: float | None = None
        self.rows = 0  # jobs that have a slot, as of the last turn; read by any thread
        self.state = State.LOADING
        self.card: ModelCard | None = None
        self._prefix: PrefixCache | None = None
        self.error: LatticeError | None = None
        self.on_broken: Callable[[LatticeError], None] | None = None
        self.watch: Callable[[Event], None] = lambda event: None  # hears every event, on the worker thread

    @property
    def cache_stats(self) -> CacheStats:
        """What the prefix cache holds and did so far; all zero where there is none. Any thread, any time."""
        return CacheStats() if self._prefix is None else self._prefix.stats

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

    def score(self, prompts: Sequence[tuple[int, ...]], top: int = 0, deadline_s: float | None = None) -> Ticket:
        """Have prompts read for the log-probabilities of their tokens: a `Scored` event for each, in order.

        Raises: as `submit`.
        """
        jobs = [ScoreJob(new_job_id(), ids, top, deadline_s) for ids in prompts]
        return self._submit(Ticket(jobs, self._inbox.put))

    def _submit(self, ticket: Ticket) -> Ticket:
        with self._lock:
            if self.state is not State.READY:
                raise self.unavailable()
            self._room.enter(ticket)
            self._inbox.put(Submit(ticket))
        return ticket

    def drain(self) -> None:
        """Refuse new work; what runs or waits goes on."""
        with self._lock:
            if self.state is State.READY:
                self.state = State.DRAINING

    def idle(self) -> bool:
        """No ticket is open."""
        return len(self._room) == 0

    def wait_idle(self, timeout_s: float) -> bool:
        """Whether no ticket is open, at the latest after so long. Blocks."""
        return self._room.wait_empty(timeout_s)

    def open_jobs(self) -> int:
        """Jobs without a terminal event, running or waiting."""
        return self._room.open_jobs

    def turn_s(self) -> float:
        """How long the engine has been in its present turn, 0 between two of them. It may be stuck there."""
        began_s = self._turn_began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

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
        desk: Desk | None = None
        try:
            opened = self._opener()
            desk = Desk(opened.engine, self._room.job_ended, lambda event: self.watch(event))
            with self._lock:
                self.card, self.state = opened.card, State.READY
                self._prefix = opened.prefix
            self._settled.set()
            while self._run_messages(desk):
                self._turn_began_s = time.monotonic()
                desk.turn()
                self._turn_began_s, self.rows = None, opened.engine.rows
            desk.abort("the server is shutting down")
        except LatticeError as error:
            self._run_break(error)
        except BaseException as error:  # a panic of Rust code is no Exception, and a thread that just ends is a lie
            log.exception("the engine thread failed")
            self._run_break(EngineFault(f"the engine failed: {error}"))
        finally:
            self._run_end(opened, desk)

    def _run_messages(self, desk: Desk) -> bool:
        """Take the messages that are here, waiting for one when there is nothing to step. False: stop."""
        wait_s = desk.ready_in_s()
        while True:
            try:
                message = self._inbox.get(wait_s)
            except queue.Empty:
                return True
            if isinstance(message, Stop):
                return False
            desk.take(message)
            wait_s = 0

    def _run_break(self, error: LatticeError) -> None:
        log.debug("the engine is broken", exc_info=error)
        with self._lock:
            self.error, self.state = error, State.BROKEN

    def _run_end(self, opened: OpenEngine | None, desk: Desk | None) -> None:
        """Answer every ticket, release the backend, say how it ended. Runs whatever happened."""
        with self._lock:
            if self.state is not State.BROKEN:
                self.state = State.STOPPED
        self.rows = 0
        self._settled.set()
        unread = []
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, Submit):
                unread.append(message.ticket)
        if desk is not None:  # without one nothing could be submitted
            desk.answer(unread, self.unavailable())
        try:
            if self.error is not None and self.on_broken is not None:
                self.on_broken(self.error)
        finally:
            if opened is not None:
                opened.close()
