"""Listening to the engine for one client: the only loop over events.

Thread: request
"""

from __future__ import annotations

from collections.abc import Iterator

from lattice_cli.engine.worker import Ticket
from lattice_cli.errors import DeadlinePassed
from lattice_cli.events import Event, Failed, Finished
from lattice_cli.serve.failures import ClientGone
from lattice_cli.serve.middleware import Visit


def heard(ticket: Ticket, visit: Visit, poll_s: float) -> Iterator[Event | None]:
    """Every event in order, and None whenever `poll_s` passed in silence.

    Whoever stops listening before the end cancels the jobs.

    Raises: ClientGone, and the error of the first reply that failed.
    """
    try:
        while not ticket.done:
            event = ticket.next(poll_s)
            if visit.gone():
                raise ClientGone
            if isinstance(event, Failed):
                raise event.error
            yield event
    finally:
        ticket.cancel()


def in_time(events: Iterator[Event | None]) -> Iterator[Event | None]:
    """The same events, as far as the time that a request may take goes. Raises: DeadlinePassed, and what they raise."""
    for event in events:
        if isinstance(event, Finished) and event.reason == "deadline":
            raise too_late()
        yield event


def too_late() -> DeadlinePassed:
    return DeadlinePassed(
        "the time that a request may take is over",
        hint="ask for fewer tokens; the server sets it with --request-timeout",
    )
