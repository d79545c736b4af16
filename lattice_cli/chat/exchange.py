"""An answer that was asked for, heard out and shown: the one loop over events of this door.

Knows tickets and views only by what they do; knows no terminal. Ctrl-C sets a flag here and
nothing else, so it can never interrupt a drawing or leave half a change.

Thread: any (the main thread, for signals)
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from lattice_cli.chat.actions import Asking
from lattice_cli.console import say, suspendable
from lattice_cli.engine.completion import Completion
from lattice_cli.engine.worker import Ticket
from lattice_cli.events import Event, Finished

TICK_S = 0.01  # what is typed meanwhile is seen so soon
GRACE_S = 0.5


class View(Protocol):
    """Where one answer after another is shown."""

    def begin(self) -> None:
        """A new answer."""

    def show(self, event: Event) -> None:
        """Take an event in."""

    def tick(self) -> None:
        """Nothing happened for a moment."""

    def again(self) -> None:
        """A shell had the terminal in between."""

    def end(self) -> None:
        """The answer is over, whole or not."""


class Interrupts:
    """How often Ctrl-C was pressed since the last `clear`."""

    def __init__(self) -> None:
        self.count = 0

    def clear(self) -> None:
        self.count = 0

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise KeyboardInterrupt, as Python does, and count it: C code and the callbacks of an import may swallow
        what is raised, and a Ctrl-C during the load was lost then.
        """
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.default_int_handler:  # ignored, as for a job in the background of a script
            yield
            return

        def note(signum: int, frame: FrameType | None) -> None:
            self.count += 1
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Count SIGINT instead of raising KeyboardInterrupt."""

        def note(signum: int, frame: FrameType | None) -> None:
            self.count += 1

        before = signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class Exchange:
    """One place to show answers, and one way to stop them."""

    def __init__(
        self,
        view: View,
        interrupts: Interrupts,
        *,
        quiet: bool = False,
        pump: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view = view
        self._interrupts = interrupts
        self._quiet = quiet
        self._pump = pump
        self._clock = clock

    def answer(self, asking: Asking) -> Completion:
        """Hear an answer out, showing it as it comes. Blocks; Ctrl-C ends it early. A failure is in the completion."""
        completion = Completion(asking.job_id)
        if asking.note and not self._quiet:
            say(asking.note, aside=True)
        self._view.begin()
        try:
            with suspendable(lambda: None, self._view.again):
                self._follow(asking.ticket, completion)
        finally:
            asking.ticket.cancel()
            self._view.end()
        self._report(completion)
        return completion

    def _follow(self, ticket: Ticket, completion: Completion) -> None:
        """Every event, as it comes. After Ctrl-C the engine has a moment to end; a step may take longer."""
        give_up_s: float | None = None
        while not ticket.done:
            if self._interrupts.count and give_up_s is None:
                ticket.cancel()
                give_up_s = self._clock() + GRACE_S
            if give_up_s is not None and self._clock() > give_up_s:
                return
            event = ticket.next(TICK_S)
            self._pump()
            if event is None:
                self._view.tick()
                continue
            completion.add(event)
            self._view.show(event)

    def _report(self, completion: Completion) -> None:
        """The speed line."""
        if self._quiet or completion.failed is not None:
            return
        finished = completion.finished
        say("stopped" if finished is None else speed_line(finished), aside=True)


def speed_line(finished: Finished) -> str:
    """Tokens and speeds of one answer. The rate counts the tokens after the first, the wait is the first's."""
    usage, timing = finished.usage, finished.timing
    words = {"cancelled": "stopped", "length": "cut at the limit"}
    parts = [words[finished.reason]] if finished.reason in words else []
    if usage.prompt_tokens or usage.completion_tokens:
        reused = f" ({usage.cached_tokens} reused)" if usage.cached_tokens else ""
        parts.append(counted(usage.prompt_tokens, "prompt token") + reused)
        parts.append(counted(usage.completion_tokens, "token"))
    else:
        parts.append("no token counts from this server")
    if rate := timing.decode_rate(usage.completion_tokens):
        parts.append(f"{rate:.1f} tok/s")
    if timing.first_token_s and (usage.completion_tokens or not usage.prompt_tokens):
        parts.append(f"first token after {timing.first_token_s:.2f} s")
    return ", ".join(parts)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
