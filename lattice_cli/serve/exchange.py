"""Events in, answer out. How a request comes this far is in admission.py, how events are waited for in hearing.py.

Knows no framework and no spelling.

Thread: request
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from lattice_cli.engine.completion import Completion
from lattice_cli.errors import LatticeError
from lattice_cli.events import CallPart, Event, Failed, Finished, Piece, Prefilled, Scored, Started
from lattice_cli.policy import Commit
from lattice_cli.serve import sse
from lattice_cli.serve.admission import Admitted
from lattice_cli.serve.failures import ClientGone, unexpected
from lattice_cli.serve.hearing import heard, in_time, too_late
from lattice_cli.serve.settings import ServeSettings
from lattice_cli.serve.wire import Frame

log = logging.getLogger("lattice.serve")


class Exchange:
    """Tells admitted requests their answers."""

    def __init__(self, settings: ServeSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._policy = settings.policy
        self._clock = clock

    def _heard(self, admitted: Admitted) -> Iterator[Event | None]:
        """What a client shall know of: one call at most, where it wants no more."""
        events = heard(admitted.ticket, admitted.visit, self._settings.poll_s)
        if admitted.ask.tools is None or admitted.ask.tools.parallel:
            return events
        return (event for event in events if not isinstance(event, CallPart) or event.index == 0)

    # An answer in one body.

    def whole(self, admitted: Admitted) -> bytes:
        """Wait for the answer; one that is late is told as far as it came. Raises: ClientGone, or the error that ended
        it.
        """
        completions = {job_id: Completion(job_id) for job_id in admitted.choice_of}
        for event in self._heard(admitted):
            if event is not None:
                completions[event.job_id].add(event)
        replies = _cut_at_deadline(list(completions.values()))
        admitted.visit.tokens = _tokens([one.finished for one in replies if one.finished is not None])
        return admitted.voice.whole(replies)

    # An answer in events.

    def stream(self, admitted: Admitted) -> Generator[bytes, None, None]:
        """Wait until the status is sure to be 200, then give the stream that goes on from there.

        Raises: ClientGone, or an error that came before.
        """
        events = in_time(self._heard(admitted))
        return self._told(admitted, chain(self._before_commit(events), events))

    def _before_commit(self, heard: Iterator[Event | None]) -> list[Event | None]:
        """Listen as long as the policy waits with the status."""
        match self._policy.commit:
            case Commit.AT_ONCE:
                return []
            case Commit.SOON:
                return self._first(heard, (Started, Finished), self._settings.commit_s)
            case Commit.FIRST_TOKEN:
                return self._first(heard, (Piece, Finished), math.inf)

    def _first(
        self, heard: Iterator[Event | None], wanted: tuple[type[Event], ...], patience_s: float
    ) -> list[Event | None]:
        """What came up to the first `wanted` event; None at the end when patience did."""
        until_s = self._clock() + patience_s
        before: list[Event | None] = []
        for event in heard:
            over = self._clock() >= until_s
            if event is not None or over:
                before.append(event)
            if isinstance(event, wanted) or over:
                break
        return before

    def _told(self, admitted: Admitted, events: Iterable[Event | None]) -> Generator[bytes, None, None]:
        """From the first byte on every end is told in the stream itself."""
        try:
            yield from self._spoken(admitted, events)
        except ClientGone:
            log.info("the client left id=%s", admitted.visit.request_id)
        except GeneratorExit:
            log.info("the client left id=%s", admitted.visit.request_id)
            raise
        except LatticeError as error:
            log.warning("a stream ended early: %s id=%s", error.message, admitted.visit.request_id)
            yield self._faulted(admitted, error)
        except Exception:
            log.exception("a stream failed id=%s", admitted.visit.request_id)
            yield self._faulted(admitted, unexpected())

    def _faulted(self, admitted: Admitted, error: LatticeError) -> bytes:
        admitted.visit.tokens = self._policy.failed_tokens
        return sse.encode(admitted.voice.fault(error))

    def _spoken(self, admitted: Admitted, events: Iterable[Event | None]) -> Generator[bytes, None, None]:
        """Something at least every `keepalive_s`, and at once when there is no event to begin with."""
        finished: list[Finished] = []
        sent_s = self._clock() - self._settings.keepalive_s
        if beginning := sse.encode(admitted.voice.begin()):
            yield beginning
            sent_s = self._clock()
        for event in events:
            if isinstance(event, Finished):
                finished.append(event)
            part = sse.encode(_frames(admitted, event))
            if not part and self._clock() - sent_s >= self._settings.keepalive_s:
                part = sse.KEEP_ALIVE
            if part:
                yield part
                sent_s = self._clock()
        admitted.visit.tokens = _tokens(finished)
        yield sse.encode(admitted.voice.end(finished))


def _frames(admitted: Admitted, event: Event | None) -> Sequence[Frame]:
    match event:
        case Piece():
            return admitted.voice.chunk(admitted.choice_of[event.job_id], event)
        case Started():
            return admitted.voice.open(admitted.choice_of[event.job_id])
        case CallPart():
            return admitted.voice.call(admitted.choice_of[event.job_id], event)
        case Finished():
            return admitted.voice.close(admitted.choice_of[event.job_id], event)
        case None | Prefilled() | Failed() | Scored():
            return ()


def _cut_at_deadline(replies: list[Completion]) -> list[Completion]:
    """Replies that were late end as those do that were too long. Raises: DeadlinePassed where none has any text."""
    late = [one for one in replies if one.finished is not None and one.finished.reason == "deadline"]
    if late and not any(one.answer or one.reasoning or one.calls for one in replies):
        raise too_late()
    for one in late:
        assert one.finished is not None
        one.finished = replace(one.finished, reason="length")
    return replies


def _tokens(finished: list[Finished]) -> int:
    return sum(one.usage.completion_tokens for one in finished)
