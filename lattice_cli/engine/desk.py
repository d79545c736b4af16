"""Desk: all that the engine's thread does, a turn at a time: messages to the engine, its events to the tickets, faults.

Driven by EngineWorker on its thread, and by tests without one. Knows no thread, no lock and no clock but the one it is
given.

Thread: worker
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from lattice_cli.engine.ticket import Cancel, Submit, Ticket
from lattice_cli.errors import EngineFault, LatticeError, SlowReader, is_panic
from lattice_cli.events import Event, Failed, Finished, Scored
from lattice_cli.job import Job

if TYPE_CHECKING:
    from lattice_cli.engine.engine import Engine

log = logging.getLogger("lattice.engine")

FAULTS_TO_BREAK = 3
FAULT_WINDOW_S = 60.0


class Desk:
    """`ended` is told of each terminal event's ticket before its reader can see it; `watch` hears every event.

    The third fault within a minute with no reply finished between them asks a canary: a short job that must make a
    token. When it cannot, `turn` raises.
    """

    def __init__(
        self,
        engine: Engine,
        ended: Callable[[Ticket], None] = lambda ticket: None,
        watch: Callable[[Event], None] = lambda event: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._ended = ended
        self._watch = watch
        self._clock = clock
        self._tickets: dict[str, Ticket] = {}  # of jobs without a terminal event
        self._faults: deque[float] = deque()

    def ready_in_s(self) -> float | None:
        """Seconds until `turn` has work; None when only a message can bring some."""
        return self._engine.ready_in_s()

    def take(self, message: Submit | Cancel) -> None:
        """Do what a message says."""
        match message:
            case Submit(ticket):
                self._tickets |= {job.id: ticket for job in ticket.jobs}
                self._engine.add(*(job for job in ticket.jobs if isinstance(job, Job)))
                for job in ticket.jobs:
                    if not isinstance(job, Job):
                        self._engine.score(job)
            case Cancel(job_ids):
                for job_id in job_ids:
                    self._deliver(self._engine.cancel(job_id))

    def turn(self) -> None:
        """One step of the engine; after a fault, what others lose by it: nothing.

        Raises: EngineFault when the engine is broken, and whatever a bug of ours raises.
        """
        try:
            events = self._engine.step()
        except BaseException as fault:
            if not isinstance(fault, Exception) and not is_panic(fault):
                raise
            self._deliver(self._engine.reset(fault))
            self._weigh(fault)
            return
        self._deliver(events)

    def abort(self, reason: str) -> None:
        """Fail every job with EngineUnavailable."""
        self._deliver(self._engine.abort(reason))

    def answer(self, tickets: Iterable[Ticket], error: LatticeError) -> None:
        """Fail what is still open, and the jobs of `tickets` that never came here; asks the engine nothing."""
        self._tickets |= {job.id: ticket for ticket in tickets for job in ticket.jobs}
        self._deliver([Failed(job_id, error) for job_id in self._tickets])

    def _deliver(self, events: Sequence[Event]) -> None:
        late: dict[int, Ticket] = {}
        for event in events:
            ticket = self._tickets.get(event.job_id)
            if ticket is None:
                continue
            if isinstance(event, Finished | Failed | Scored):
                del self._tickets[event.job_id]
                self._ended(ticket)
            if isinstance(event, Finished) and event.reason != "cancelled":
                self._faults.clear()
            self._watch(event)
            if not ticket.deliver(event):
                late[id(ticket)] = ticket
        for ticket in late.values():
            self._drop(ticket)

    def _drop(self, ticket: Ticket) -> None:
        """Nobody reads what a ticket's jobs make: the engine makes no more of it."""
        open_jobs = [job.id for job in ticket.jobs if job.id in self._tickets]
        if not open_jobs:
            return
        error = SlowReader(f"the reply was not read: {ticket.unread_bytes >> 10} KiB of it were waiting")
        log.warning("jobs %s are cancelled: %s", ", ".join(open_jobs), error.message)
        for job_id in open_jobs:
            self._deliver(self._engine.drop(job_id, error))

    def _weigh(self, fault: BaseException) -> None:
        """Count a fault. After too many of them a canary decides: bad requests, or a broken engine."""
        now_s = self._clock()
        self._faults.append(now_s)
        while now_s - self._faults[0] > FAULT_WINDOW_S:
            self._faults.popleft()
        if len(self._faults) < FAULTS_TO_BREAK:
            return
        self._faults.clear()
        if not self._engine.alive():
            raise EngineFault("the engine makes no tokens any more") from fault
