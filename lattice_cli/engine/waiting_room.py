"""The waiting room: how many requests are open, and when a full room will have a place again.

A request is a ticket, whatever its choices: it holds one place until the last of them has ended. Its further choices
take turns with the other requests (scheduler.py), so they cost nobody a place.

Thread: any
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from lattice_cli.engine.ticket import Ticket
from lattice_cli.errors import Overloaded

ENDS_REMEMBERED = 16
MOST_RETRY_S = 60


class WaitingRoom:
    """At most `places` tickets are open at once, those that run among them."""

    def __init__(self, places: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._places = places
        self._clock = clock
        self._lock = threading.Lock()
        self._emptied = threading.Condition(self._lock)
        self._unfinished: dict[Ticket, int] = {}  # jobs without a terminal event, of each open ticket
        self._ends_s: deque[float] = deque(maxlen=ENDS_REMEMBERED)  # when the last tickets were closed

    def __len__(self) -> int:
        """Open tickets."""
        with self._lock:
            return len(self._unfinished)

    @property
    def open_jobs(self) -> int:
        """Jobs without a terminal event."""
        with self._lock:
            return sum(self._unfinished.values())

    def enter(self, ticket: Ticket) -> None:
        """Raises: Overloaded, with the seconds after which a place is likely to be free."""
        with self._lock:
            if len(self._unfinished) >= self._places:
                error = Overloaded(
                    f"the server is busy: {self._places} requests are running or waiting", hint="try again later"
                )
                error.retry_after_s = self._retry_after_s()
                raise error
            if not self._unfinished:
                self._ends_s.clear()
                self._ends_s.append(self._clock())  # an idle hour says nothing of how fast requests end
            self._unfinished[ticket] = len(ticket.jobs)

    def job_ended(self, ticket: Ticket) -> None:
        """One job of a ticket has its terminal event."""
        with self._lock:
            self._unfinished[ticket] -= 1
            if not self._unfinished[ticket]:
                del self._unfinished[ticket]
                self._ends_s.append(self._clock())
                if not self._unfinished:
                    self._emptied.notify_all()

    def wait_empty(self, timeout_s: float) -> bool:
        """Whether no ticket is open, at the latest after so long. Blocks."""
        with self._emptied:
            return self._emptied.wait_for(lambda: not self._unfinished, timeout_s)

    def _retry_after_s(self) -> int:
        """The time between two ends of late; where none ended for longer than that, as long as that has been."""
        between_s = (self._clock() - self._ends_s[0]) / max(1, len(self._ends_s) - 1)
        return min(MOST_RETRY_S, max(1, math.ceil(between_s)))
