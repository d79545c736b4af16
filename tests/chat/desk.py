"""Where a worker stands, for tests of the chat: it notes jobs and plays what it is given.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lattice_cli.chat.actions import Asking, Talk
from lattice_cli.chat.engine_partner import EnginePartner
from lattice_cli.chat.exchange import Exchange, Interrupts
from lattice_cli.engine.completion import Completion
from lattice_cli.engine.scripted import open_script
from lattice_cli.engine.worker import Message, Ticket
from lattice_cli.events import Event, Finished, Piece, Timing, Usage
from lattice_cli.job import Channel, Job
from lattice_cli.model.card import ModelCard, ModelSource

USAGE, TIMING = Usage(prompt_tokens=52, completion_tokens=3), Timing(first_token_s=0.25, decode_s=0.5)
DONE = Finished("", "stop", USAGE, TIMING)


class Desk:
    """Each submission plays the next of `answers`; the last one again and again. A cancel brings an end."""

    def __init__(self, *answers: Sequence[Event], on_cancel: bool = True) -> None:
        self.answers, self.on_cancel = [*answers] or [(DONE,)], on_cancel
        self.jobs: list[Job] = []
        self.cancels = 0
        self.stopped = False

    @property
    def job(self) -> Job:
        return self.jobs[-1]

    def submit(self, jobs: Sequence[Job]) -> Ticket:
        (job,) = jobs
        ticket = Ticket(jobs, lambda message: self._message(message, job, ticket))
        for event in self.answers[min(len(self.jobs), len(self.answers) - 1)]:
            ticket.deliver(replace(event, job_id=job.id))  # type: ignore[type-var]
        self.jobs.append(job)
        return ticket

    def stop(self, timeout_s: float = 0.0) -> bool:
        self.stopped = True
        return True

    def _message(self, message: Message, job: Job, ticket: Ticket) -> None:
        self.cancels += 1
        if self.on_cancel and self.cancels == 1:
            ticket.deliver(Finished(job.id, "cancelled", USAGE, TIMING))


class Watcher:
    """A view that notes what it was told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def show(self, event: Event) -> None:
        self.calls.append(type(event).__name__)

    def tick(self) -> None:
        self.calls.append("tick")

    def again(self) -> None:
        self.calls.append("again")

    def end(self) -> None:
        self.calls.append("end")


def says(text: str, thought: str = "", end: Finished = DONE) -> tuple[Event, ...]:
    """The events of an answer."""
    thoughts = (Piece("", Channel.REASONING, thought),) if thought else ()
    return (*thoughts, *((Piece("", Channel.ANSWER, text),) if text else ()), end)


def bot_card(folder: Path, **fields: Any) -> ModelCard:
    """The card of a scripted model: one token a byte, bare ChatML, 1000 tokens of context."""
    file = folder / "bot.json"
    file.write_text(json.dumps({"replies": [], "context_tokens": 1000, **fields}))
    return open_script(ModelSource("bot", file, "script"), None)[0]


def partner(desk: Desk, card: ModelCard) -> EnginePartner:
    return EnginePartner(desk, card)  # type: ignore[arg-type]


def heard(talk: Talk, asking: Asking) -> tuple[Completion, str | None]:
    """An answer as the REPL takes it: shown to nobody, then kept."""
    completion = Exchange(Watcher(), Interrupts(), quiet=True).answer(asking)
    return completion, talk.keep(asking, completion)
