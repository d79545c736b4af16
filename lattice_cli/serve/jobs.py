"""From what a request asks for to the jobs that the engine gets.

Thread: request
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lattice_cli.engine.worker import Ticket, new_job_id
from lattice_cli.errors import InvalidField
from lattice_cli.events import Finished, Timing, Usage
from lattice_cli.job import Job, Prompt, Sampling, SamplingChoice, resolve_sampling
from lattice_cli.model.card import ModelCard
from lattice_cli.serve.limits import Window, limits_of
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
    _check_ids(card, "logit_bias", [token_id for token_id, _ in sampling.logit_bias])
    _check_ids(card, "stop_token_ids", limits.stop_ids)
    apart = policy.reasoning_apart
    return [
        Job(new_job_id(), prompt, sampling, limits, choice, apart, logprobs=ask.logprobs)
        for choice in range(ask.choices)
    ]


def _check_ids(card: ModelCard, param: str, ids: Iterable[int]) -> None:
    """Raises: InvalidField for an id that the vocabulary lacks; on a CPU it would end the process."""
    size = card.tokenizer.vocabulary_size
    for token_id in ids:
        if token_id >= size:
            raise InvalidField(f"`{param}` names the token {token_id}, and there are {size}", param=param)


def nothing_said(jobs: Sequence[Job]) -> Ticket:
    """The events of replies that must be empty; no engine is asked."""
    ticket = Ticket(jobs, send=lambda message: None)
    for job in jobs:
        ticket.deliver(Finished(job.id, "length", Usage(prompt_tokens=len(job.prompt.ids)), Timing()))
    return ticket
