"""Request in, jobs out: a body is read, checked, rendered and queued.

Knows no framework and no spelling: a dialect reads the body. Everything that can be refused is refused before a job
is queued, so that it has an honest status.

Thread: request
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lattice_cli.engine.worker import EngineWorker, State, Ticket
from lattice_cli.errors import EngineLost, ModelNotFound, UnsupportedField
from lattice_cli.events import Scored
from lattice_cli.job import Prompt
from lattice_cli.model.card import ModelCard
from lattice_cli.serve.hearing import heard, in_time
from lattice_cli.serve.jobs import jobs_of, nothing_said
from lattice_cli.serve.middleware import Visit
from lattice_cli.serve.prompts import prompts_of
from lattice_cli.serve.settings import ServeSettings
from lattice_cli.serve.wire import Ask, Dialect, Echo, Voice
from lattice_cli.serve.wire.fields import header_names

log = logging.getLogger("lattice.serve")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that was queued, and the voice that will tell its answer."""

    ask: Ask
    voice: Voice
    ticket: Ticket
    choice_of: dict[str, int]
    visit: Visit


def ready_card(worker: EngineWorker) -> ModelCard:
    """Raises: EngineUnavailable saying what the engine is busy with."""
    state, card, busy = worker.state, worker.card, worker.unavailable()
    if state in (State.BROKEN, State.STOPPED):
        raise EngineLost(busy.message)
    if card is None or state is not State.READY:
        raise busy
    return card


class Admission:
    """The way in to one worker, for any number of request threads."""

    def __init__(self, worker: EngineWorker, settings: ServeSettings) -> None:
        self._worker = worker
        self._settings = settings
        self._policy = settings.policy

    def admit(self, dialect: Dialect, body: bytes, visit: Visit) -> Admitted:
        """Read, check, render and queue a request.

        Raises: BadRequest, ModelNotFound, EngineUnavailable, Overloaded; ClientGone, DeadlinePassed, EngineFault where
        prompts are scored first.
        """
        ask = dialect.parse(body)
        visit.stream = ask.stream
        card = self.card_for(ask, visit)
        prompts = prompts_of(ask, card, self._settings)
        if self._settings.log_prompts:
            for prompt in prompts:
                log.info("prompt %s id=%s", json.dumps(prompt.text), visit.request_id)
        deadline_s = self._deadline_s(visit)
        jobs = [job for prompt in prompts for job in jobs_of(ask, card, prompt, self._settings)]
        jobs = [replace(job, limits=replace(job.limits, deadline_s=deadline_s)) for job in jobs]
        echoes = self._echoes(ask, prompts, visit)
        ticket = self._worker.submit(jobs) if jobs[0].limits.max_tokens else nothing_said(jobs)
        choice_of = {job.id: index for index, job in enumerate(jobs)}
        voice = dialect.voice(ask, card.served_id if ask.model is None else ask.model, echoes)
        return Admitted(ask, voice, ticket, choice_of, visit)

    def card_for(self, ask: Ask, visit: Visit) -> ModelCard:
        """The model that is asked. Raises: EngineUnavailable, ModelNotFound, UnsupportedField."""
        card = ready_card(self._worker)
        self._check_model(ask.model, card)
        self._check_names(ask.ignored, visit)
        return card

    def prompts(self, ask: Ask, visit: Visit) -> tuple[ModelCard, list[Prompt]]:
        """What a request would have the model read. Raises as `admit`."""
        card = self.card_for(ask, visit)
        return card, prompts_of(ask, card, self._settings)

    def _check_model(self, asked: str | None, card: ModelCard) -> None:
        if asked not in (None, card.served_id, *self._settings.aliases) and not self._policy.any_model:
            raise ModelNotFound(
                f"the model {json.dumps(str(asked)[:200])} is not served here",
                param="model",
                hint=f"send `{card.served_id}`, or leave `model` out",
            )

    def _check_names(self, ignored: Sequence[str], visit: Visit) -> None:
        if not ignored:
            return
        if self._settings.strict_fields:
            strange = ignored[0][:200]
            raise UnsupportedField(
                f"there is no field {json.dumps(strange)}", param=strange, hint="this server runs with --strict-fields"
            )
        names = ", ".join(header_names(ignored)) or "none that can be printed"
        log.warning("fields that nobody knows: %s id=%s", names, visit.request_id)

    def _deadline_s(self, visit: Visit) -> float | None:
        """When a request must be over, from its arrival on."""
        timeout_s = self._settings.request_timeout_s
        return None if timeout_s is None else visit.started_s + timeout_s

    def _echoes(self, ask: Ask, prompts: Sequence[Prompt], visit: Visit) -> list[Echo]:
        """What is sent back of the prompts, read for it where log-probabilities were asked for. Raises as `heard`."""
        if not ask.echo:
            return []
        if ask.logprobs is None:
            return [Echo(prompt.text) for prompt in prompts]
        ticket = self._worker.score([prompt.ids for prompt in prompts], ask.logprobs, self._deadline_s(visit))
        events = in_time(heard(ticket, visit, self._settings.poll_s))
        scores = {event.job_id: event.scores for event in events if isinstance(event, Scored)}
        return [Echo(prompt.text, scores[job.id]) for prompt, job in zip(prompts, ticket.jobs, strict=True)]
