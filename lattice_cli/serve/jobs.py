"""From what a request asks for to the jobs that the engine gets.

Thread: request
"""

from __future__ import annotations

from collections.abc import Sequence

from lattice_cli.engine.worker import Ticket, new_job_id
from lattice_cli.events import Finished, Timing, Usage
from lattice_cli.job import Job, Prompt, Sampling, SamplingChoice, resolve_sampling
from lattice_cli.model.card import ModelCard
from lattice_cli.serve.limits import Window, limits_of
from lattice_cli.serve.prompts import check_ids
from lattice_cli.serve.settings import ServeSettings
from lattice_cli.serve.wire import Ask


def jobs_of(ask: Ask, card: ModelCard, prompt: Prompt, settings: ServeSettings) -> list[Job]:
    """One for each choice; whoever named a value first decides it. Raises: PromptTooLong, InvalidField,
    UnsupportedField.
    """
    policy = settings.policy
    limits = limits_of(ask, settings, Window(card.context_tokens, len(prompt.ids), thinks=card.think is not None))
    sampling = resolve_sampling(
        ask.sampling,
        settings.sampling,
        card.sampling if policy.model_defaults else SamplingChoice(),
        floor=Sampling(repetition_penalty=policy.repetition_penalty),
    )
    check_ids(card, "logit_bias", [token_id for token_id, _ in sampling.logit_bias])
    check_ids(card, "stop_token_ids", limits.stop_ids)
    apart = policy.reasoning_apart and not ask.prompts
    return [
        Job(new_job_id(), prompt, sampling, limits, choice, apart, logprobs=ask.logprobs)
        for choice in range(ask.choices)
    ]


def nothing_said(jobs: Sequence[Job]) -> Ticket:
    """The events of replies that must be empty; no engine is asked."""
    ticket = Ticket(jobs, send=lambda message: None)
    for job in jobs:
        ticket.deliver(Finished(job.id, "length", Usage(prompt_tokens=len(job.prompt.ids)), Timing()))
    return ticket
