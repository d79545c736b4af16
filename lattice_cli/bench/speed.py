"""How fast the engine is, in this process and without HTTP: prefill and decode apart.

Every trial reads a prompt of exactly the asked length that begins unlike any other trial's, so that no
cached prefix helps, and draws greedily. Knows EngineWorker and its events; the numbers are the engine's
own clock.

Thread: any
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lattice_cli.bench.stats import rate
from lattice_cli.engine.completion import Completion
from lattice_cli.engine.worker import EngineWorker, new_job_id
from lattice_cli.errors import BenchError, UsageError
from lattice_cli.job import Job, Limits, Prompt, Sampling
from lattice_cli.model.card import ModelCard

STORY = (
    "The harbour master counts the boats that come in with the tide and writes their names in a long book: "
    "one for the nets, two for the lamps, three for the ropes, four for the bells. "
)


@dataclass(frozen=True, slots=True)
class SpeedPlan:
    """`warmups` trials run first and are left out; `seed` only changes how the prompts begin."""

    prompt_tokens: int = 512
    max_tokens: int = 64
    trials: int = 5
    warmups: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """One reply. Times as in `events.Timing`."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefill_s: float
    first_token_s: float
    decode_s: float

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens read, cached ones left out, per second of prefill."""
        return rate(self.prompt_tokens - self.cached_tokens, self.prefill_s)

    @property
    def decode_rate(self) -> float | None:
        """Tokens after the first, per second since the first: the prompt's time is not in it."""
        return rate(self.completion_tokens - 1, self.decode_s)


def fixed_prompt(card: ModelCard, prompt_tokens: int, opening: str) -> Prompt:
    """A prompt of exactly `prompt_tokens` tokens that begins with `opening`; the same every time."""
    story_tokens = max(1, len(card.tokenizer.encode(STORY)))
    ids = card.tokenizer.encode(opening + STORY * (1 + prompt_tokens // story_tokens))
    while len(ids) < prompt_tokens:  # a tokenizer may join what it met apart
        ids += ids
    text = card.tokenizer.decode(ids[:prompt_tokens])
    return Prompt(ids=tuple(ids[:prompt_tokens]), text=text, asked=text)


def run_speed(worker: EngineWorker, plan: SpeedPlan) -> Iterator[Trial]:
    """The trials one by one, after the warm-ups. The worker must be ready.

    Raises: UsageError when prompt and reply do not fit the window; what the engine failed with;
    BenchError for a reply without tokens.
    """
    card = worker.wait_ready()
    if plan.prompt_tokens + plan.max_tokens + 1 > card.context_tokens:
        raise UsageError(
            f"`--prompt-tokens` {plan.prompt_tokens} and `--max-tokens` {plan.max_tokens} do not fit the "
            f"context window of {card.context_tokens} tokens",
            param="--prompt-tokens",
        )
    for number in range(-plan.warmups, plan.trials):
        opening = f"{plan.seed + number + plan.warmups} is the number of this page. "
        trial = _run_one(worker, fixed_prompt(card, plan.prompt_tokens, opening), plan.max_tokens)
        if number >= 0:
            yield trial


def _run_one(worker: EngineWorker, prompt: Prompt, max_tokens: int) -> Trial:
    greedy = Sampling(temperature=0.0, repetition_penalty=1.0)
    ticket = worker.submit([Job(new_job_id(), prompt, greedy, Limits(max_tokens))])
    reply = Completion(ticket.jobs[0].id)
    try:
        while not ticket.done:
            if (event := ticket.next()) is not None:
                reply.add(event)
    finally:
        ticket.cancel()
    if reply.failed is not None:
        raise reply.failed.error
    if reply.finished is None or reply.finished.usage.completion_tokens == 0:
        raise BenchError("the model answered with no tokens, so there is nothing to measure")
    usage, timing = reply.finished.usage, reply.finished.timing
    return Trial(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        prefill_s=timing.prefill_s,
        first_token_s=timing.first_token_s,
        decode_s=timing.decode_s,
    )
