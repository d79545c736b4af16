"""From what a request asks for to the jobs that the engine gets.

Thread: request
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lattice_cli.engine.guide import compile_guide
from lattice_cli.engine.worker import Ticket, new_job_id
from lattice_cli.errors import InvalidField, UnsupportedField
from lattice_cli.events import Finished, Timing, Usage
from lattice_cli.job import Channel, Constraint, Job, Prompt, Sampling, SamplingChoice, ToolSpeech, resolve_sampling
from lattice_cli.model.card import ModelCard
from lattice_cli.prompt.call_grammar import answer_or_calls, call_constraint
from lattice_cli.prompt.traits import traits_of
from lattice_cli.serve.limits import Window, limits_of
from lattice_cli.serve.prompts import check_ids, thinking_for
from lattice_cli.serve.settings import ServeSettings
from lattice_cli.serve.wire import Ask
from lattice_cli.serve.wire.formats import Bound
from lattice_cli.serve.wire.tools import ToolAsk

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
    bound = ask.bound if ask.tools is None or speech is None else _with_calls(ask.tools, speech, ask.bound)
    if bound is None:
        return None
    compile_guide(card, bound.constraint, bound.param)
    thoughtless = window.thinking.enabled is False and window.thinking.budget_tokens is None
    if card.think is None or ask.prompts or (thoughtless and not window.opened):
        return bound.constraint
    return replace(bound.constraint, opens_after=card.think[1])


def _with_calls(tools: ToolAsk, speech: ToolSpeech, bound: Bound | None) -> Bound | None:
    """What bounds a reply that may call, or must: then there is no text for another bound to hold."""
    if tools.choice != "auto":
        return Bound(call_constraint(speech, tools.name, parallel=tools.parallel), "tools")
    if bound is None:
        return None
    if bound.constraint.kind == "json_schema":
        try:
            return Bound(answer_or_calls(bound.constraint.text, speech, parallel=tools.parallel), bound.param)
        except ValueError as error:
            raise InvalidField(f"this schema cannot be enforced: {error}", param=bound.param) from error
    raise UnsupportedField(
        f"`{bound.param}` together with tools that may be called is not supported",
        param=bound.param,
        hint='leave one of them out, or send `tool_choice` "none"',
    )


def nothing_said(jobs: Sequence[Job]) -> Ticket:
    """The events of replies that must be empty; no engine is asked."""
    ticket = Ticket(jobs, send=lambda message: None)
    for job in jobs:
        ticket.deliver(Finished(job.id, "length", Usage(prompt_tokens=len(job.prompt.ids)), Timing()))
    return ticket
