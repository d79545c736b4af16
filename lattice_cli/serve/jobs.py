"""From what a request asks for to the jobs that the engine gets.

Thread: request
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lattice_cli.engine.guide import compile_guide
from lattice_cli.engine.worker import Ticket, new_job_id
from lattice_cli.errors import UnsupportedField
from lattice_cli.events import Finished, Timing, Usage
from lattice_cli.job import Channel, Constraint, Job, Prompt, Sampling, SamplingChoice, ToolSpeech, resolve_sampling
from lattice_cli.model.card import ModelCard
from lattice_cli.prompt.call_grammar import call_constraint
from lattice_cli.prompt.traits import traits_of
from lattice_cli.serve.limits import Window, limits_of
from lattice_cli.serve.prompts import check_ids, thinking_for
from lattice_cli.serve.settings import ServeSettings
from lattice_cli.serve.wire import Ask

FALLBACK_DIALECT = "json"  # of prompt/hermes.py


def jobs_of(ask: Ask, card: ModelCard, prompt: Prompt, settings: ServeSettings) -> list[Job]:
    """One for each choice; whoever named a value first decides it.

    Raises: PromptTooLong, InvalidField, UnsupportedField.
    """
    policy = settings.policy
    window = Window(
        card.context_tokens,
        len(prompt.ids),
        thinks=card.think is not None,
        opened=prompt.opens_in is Channel.REASONING,
        thinking=thinking_for(ask, card),
    )
    limits = limits_of(ask, settings, window)
    sampling = resolve_sampling(
        ask.sampling,
        settings.sampling,
        card.sampling if policy.model_defaults else SamplingChoice(),
        floor=Sampling(repetition_penalty=policy.repetition_penalty),
    )
    check_ids(card, "logit_bias", [token_id for token_id, _ in sampling.logit_bias])
    check_ids(card, "stop_token_ids", limits.stop_ids)
    speech = _speech(ask, card)
    job = Job(
        new_job_id(),
        prompt,
        sampling,
        limits,
        reasoning_apart=policy.reasoning_apart and not ask.prompts,
        logprobs=ask.logprobs,
        constraint=_constraint(ask, card, window, speech),
        speech=speech,
    )
    return [replace(job, id=new_job_id(), choice=choice) for choice in range(ask.choices)]


def _speech(ask: Ask, card: ModelCard) -> ToolSpeech | None:
    """How the reply's calls will be spelled: as the model's template has it, else as the words that offer them have."""
    if ask.tools is None:
        return None
    traits = traits_of(card)
    dialect = traits.dialect if traits.renders_tools else FALLBACK_DIALECT
    if dialect is None:
        raise UnsupportedField(
            f"nobody knows how `{card.served_id}` spells calls of tools",
            param="tools",
            hint='use another model, or send `tool_choice` "none"',
        )
    return ToolSpeech(dialect, ask.tools.tools)


def _constraint(ask: Ask, card: ModelCard, window: Window, speech: ToolSpeech | None) -> Constraint | None:
    """What bounds the answer, compiled by now; thoughts come before it.

    Raises: InvalidField with the reason; UnsupportedField for calls that cannot be enforced.
    """
    if ask.bound is not None:
        constraint, param = ask.bound
    elif speech is not None and ask.tools is not None and ask.tools.choice != "auto":
        constraint, param = call_constraint(speech, ask.tools.name, parallel=ask.tools.parallel), "tools"
    else:
        return None
    compile_guide(card, constraint, param)
    thoughtless = window.thinking.enabled is False and window.thinking.budget_tokens is None
    if card.think is None or ask.prompts or (thoughtless and not window.opened):
        return constraint
    return replace(constraint, opens_after=card.think[1])


def nothing_said(jobs: Sequence[Job]) -> Ticket:
    """The events of replies that must be empty; no engine is asked."""
    ticket = Ticket(jobs, send=lambda message: None)
    for job in jobs:
        ticket.deliver(Finished(job.id, "length", Usage(prompt_tokens=len(job.prompt.ids)), Timing()))
    return ticket
