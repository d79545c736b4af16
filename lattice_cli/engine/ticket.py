"""Ticket: what a door holds of its jobs; and the messages that go into the engine's inbox.

A reader may be slow, but not for ever: what lies unread is counted in bytes, and whoever delivers hears when it is too
much. A reader that catches up in time loses nothing.

Thread: any (Ticket.next, Ticket.cancel); worker (Ticket.deliver)
"""

from __future__ import annotations

import queue
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lattice_cli.engine.mailbox import Mailbox
from lattice_cli.events import CallPart, Event, Failed, Finished, Piece, Scored
from lattice_cli.job import Job, ScoreJob

UNREAD_BYTES = 8 << 20  # some 32,000 tokens: a script may make them faster than a willing reader takes them
EVENT_BYTES = 256
SCORE_BYTES = 128  # a token's log-probability, or one of the likeliest beside it


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


def weight_bytes(event: Event) -> int:
    """About what an event that nobody has read yet takes of memory. An end weighs nothing: it must come through."""
    match event:
        case Piece():
            return EVENT_BYTES + len(event.text) + SCORE_BYTES * sum(1 + len(score.top) for score in event.scores)
        case CallPart():
            return EVENT_BYTES + len(event.arguments)
        case Finished() | Failed() | Scored():
            return 0
        case _:
            return EVENT_BYTES


class Ticket:
    """One submission: the events of its jobs, in order, on one queue. One reader; any thread may cancel."""

    def __init__(
        self, jobs: Sequence[Job | ScoreJob], send: Callable[[Message], None], unread_bytes: int = UNREAD_BYTES
    ) -> None:
        self.jobs = tuple(jobs)
        self._send = send
        self._events: Mailbox[Event] = Mailbox()
        self._unread_ends = len(self.jobs)
        self._most_unread_bytes = unread_bytes
        self._delivered_bytes = 0  # changed by the worker only
        self._read_bytes = 0  # changed by the reader only

    @property
    def done(self) -> bool:
        """Every job's terminal event has been read."""
        return self._unread_ends == 0

    @property
    def unread_bytes(self) -> int:
        """What was delivered and not read."""
        return self._delivered_bytes - self._read_bytes

    def next(self, timeout_s: float | None = None) -> Event | None:
        """The next event, waiting at most `timeout_s` (None: as long as it takes).

        None when nothing came in time, and at once when `done`.
        """
        if self.done:
            return None
        try:
            event = self._events.get(timeout_s)
        except queue.Empty:
            return None
        self._read_bytes += weight_bytes(event)
        if isinstance(event, Finished | Failed | Scored):
            self._unread_ends -= 1
        return event

    def cancel(self) -> None:
        """Ask the engine to end these jobs; they end as `cancelled` within one step. Idempotent."""
        if not self.done:
            self._send(Cancel(tuple(job.id for job in self.jobs)))

    def deliver(self, event: Event) -> bool:
        """Called by the worker only. False: more lies unread than may; the event is delivered all the same."""
        self._delivered_bytes += weight_bytes(event)
        self._events.put(event)
        return self.unread_bytes <= self._most_unread_bytes
