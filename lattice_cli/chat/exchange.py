"""A conversation in, an answer out: the one loop over events of this door.

Knows sessions, tickets and views only by what they do; knows no terminal. Ctrl-C sets a flag here and
nothing else, so it can never interrupt a drawing or leave half a change.

Thread: any (the main thread, for signals)
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from lattice_cli.chat.session import Session
from lattice_cli.console import say
from lattice_cli.engine.completion import Completion
from lattice_cli.engine.worker import EngineWorker, Ticket, new_job_id
from lattice_cli.events import Event, Finished
from lattice_cli.job import Job, Limits, Sampling, SamplingChoice, resolve_sampling
from lattice_cli.model.card import ModelCard
from lattice_cli.policy import OPENAI
from lattice_cli.prompt.template import render_chat
from lattice_cli.prompt.window import fits

TICK_S = 0.1
GRACE_S = 0.5


class View(Protocol):
    """Where one answer after another is shown."""

    def begin(self) -> None:
        """A new answer."""

    def show(self, event: Event) -> None:
        """Take an event in."""

    def tick(self) -> None:
        """Nothing happened for a moment."""

    def end(self) -> None:
        """The answer is over, whole or not."""


class Interrupts:
    """How often Ctrl-C was pressed since the last `clear`."""

    def __init__(self) -> None:
        self.count = 0

    def clear(self) -> None:
        self.count = 0

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


@dataclass(frozen=True, slots=True)
class Manner:
    """How answers are made. `max_tokens` is the most an answer may have; None: what fits."""

    sampling: SamplingChoice = SamplingChoice()
    max_tokens: int | None = None
    quiet: bool = False


class Exchange:
    """One model, one way of asking, one place to show."""

    def __init__(
        self,
        worker: EngineWorker,
        card: ModelCard,
        manner: Manner,
        view: View,
        interrupts: Interrupts,
        pump: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._card = card
        self._manner = manner
        self._view = view
        self._interrupts = interrupts
        self._pump = pump
        self._clock = clock

    def answer(self, session: Session) -> Completion:
        """Answer the session's last question, showing it as it comes. Blocks; Ctrl-C ends it early.

        Raises: BadRequest (PromptTooLong, a template's refusal), EngineUnavailable. A failure in the
        middle of an answer is in the completion.
        """
        job = self._job(session)
        ticket = self._worker.submit([job])
        completion = Completion(job.id)
        self._view.begin()
        try:
            self._follow(ticket, completion)
        finally:
            ticket.cancel()
            self._view.end()
        self._report(job, completion)
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

    def _job(self, session: Session) -> Job:
        card, manner = self._card, self._manner
        prompt = render_chat(card, session.conversation)
        max_tokens = fits(card.context_tokens, len(prompt.ids), None, manner.max_tokens)
        advice = card.sampling if OPENAI.model_defaults else SamplingChoice()
        floor = Sampling(repetition_penalty=OPENAI.repetition_penalty)
        return Job(new_job_id(), prompt, resolve_sampling(manner.sampling, advice, floor=floor), Limits(max_tokens))

    def _report(self, job: Job, completion: Completion) -> None:
        """The speed line, and why an answer ended early."""
        finished = completion.finished
        if finished is None:
            if completion.failed is None and not self._manner.quiet:
                say("stopped", aside=True)
            return
        if not self._manner.quiet:
            say(speed_line(finished), aside=True)
        if finished.reason == "length" and job.limits.max_tokens != self._manner.max_tokens:
            say(f"the answer was cut: the context window of {self._card.context_tokens} tokens is full")


def speed_line(finished: Finished) -> str:
    """Tokens and speeds of one answer. The rate counts the tokens after the first, the wait is the first's."""
    usage, timing = finished.usage, finished.timing
    words = {"cancelled": "stopped", "length": "cut at the limit"}
    parts = [words[finished.reason]] if finished.reason in words else []
    parts += [counted(usage.prompt_tokens, "prompt token"), counted(usage.completion_tokens, "token")]
    if rate := timing.decode_rate(usage.completion_tokens):
        parts.append(f"{rate:.1f} tok/s")
    if usage.completion_tokens:
        parts.append(f"first token after {timing.first_token_s:.2f} s")
    return ", ".join(parts)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
