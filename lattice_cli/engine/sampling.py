"""How a token is drawn: penalties, bias, what may not come, temperature, top-k, min-p, top-p, and a keyed draw.

The order is lattice_serve's: repetition penalty (over prompt and reply) on the raw logits, presence and frequency
penalty (over the reply), `logit_bias`; then what may come at all: no end before `min_tokens`, only the forced token
of a thinking budget, only what a grammar allows; then temperature, top-k, softmax, min-p, top-p, draw. Temperature 0
is argmax after all that; ties go to the lowest id. Scores of tokens are taken from the raw logits, before any of it
(logprobs.py). Nothing here syncs with the host, but for a budget that is used up.

Thread: worker
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import cast

import mlx.core as mx

from lattice_cli.engine.reasoning import ReasoningBudget
from lattice_cli.job import Job, Sampling
from lattice_cli.kernels import draws

Sampler = Callable[[mx.array], mx.array]
Processor = Callable[[mx.array, mx.array], mx.array]

MIN_TEMPERATURE = 1e-5  # below it, 1/t overflows float32 logits: argmax, as lattice_serve does


def greedy(logits: mx.array) -> mx.array:
    """The most likely id of each row. One function for all greedy rows, so a batch draws them in one call."""
    return mx.argmax(logits, axis=-1)  # (rows,)


def draw_key(seed: int, choice: int, position: int) -> mx.array:
    """A random key that depends on the request alone: its seed, choice index and token position."""
    digest = hashlib.blake2b(f"{seed}/{choice}/{position}".encode(), digest_size=8).digest()
    return mx.random.key(int.from_bytes(digest))


def row_sampler(job: Job, position: int) -> Sampler:
    """The sampler of one row, continuing at token `position` of its reply.

    It is called once a step, in order, with log-probabilities (1, vocabulary) and gives ids (1,).
    """
    sampling = job.sampling
    if sampling.temperature < MIN_TEMPERATURE or sampling.top_k == 1:
        return greedy
    # A job without a seed gets one of its own, made from its id, so that a restart after a fault draws alike.
    seed = _seed_of(job.id) if sampling.seed is None else sampling.seed
    state = position

    def sample(logits: mx.array) -> mx.array:
        nonlocal state
        key = draw_key(seed, job.choice, state)
        state += 1
        return draw(logits, sampling, key)

    return sample


_process_salt = secrets.token_bytes(16)


def _seed_of(job_id: str) -> int:
    """A seed nobody can foresee, the same for one job throughout this process."""
    return int.from_bytes(hashlib.blake2b(job_id.encode(), key=_process_salt, digest_size=8).digest())


def draw(logits: mx.array, sampling: Sampling, key: mx.array) -> mx.array:
    """Draw one id a row from `logits` (rows, vocabulary); ids (rows,).

    PERF: with top_k the rest works on k values instead of a sorted vocabulary.
    """
    rows, vocabulary = logits.shape
    scale = 1.0 / sampling.temperature
    if 0 < sampling.top_k < vocabulary:
        noise = mx.random.gumbel((rows, sampling.top_k), key=key)
        return draws.draw_likeliest(logits, noise, scale, sampling.min_p, sampling.top_p)
    return draws.draw_kept(logits, key, scale, sampling.min_p, sampling.top_p)


def row_processors(
    job: Job, budget: ReasoningBudget | None = None, end_ids: frozenset[int] = frozenset()
) -> list[Processor]:
    """What changes a row's logits before the draw; empty for a row that only samples.

    A grammar is no processor: it needs the newest token on the host (batch.py), and keeps `min_tokens` itself.
    """
    sampling, limits = job.sampling, job.limits
    prompt_tokens = len(job.prompt.ids)
    processors: list[Processor] = []
    if sampling.repetition_penalty != 1.0:
        processors.append(_repetition(sampling.repetition_penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        processors.append(_reply_penalty(sampling, prompt_tokens))
    if sampling.logit_bias:
        processors.append(_bias(sampling.logit_bias))
    if limits.min_tokens and end_ids and job.constraint is None:
        processors.append(_no_end(end_ids, limits.min_tokens, prompt_tokens))
    if budget is not None:
        processors.append(_budget(budget, prompt_tokens))
    return processors


def _bias(bias: tuple[tuple[int, float], ...]) -> Processor:
    """Adds to the logits of some ids. Ids beyond the logits are left out: mlx would write past their end."""

    def process(context: mx.array, logits: mx.array) -> mx.array:
        known = [(token_id, value) for token_id, value in bias if 0 <= token_id < logits.shape[-1]]
        if not known:
            return logits
        ids, values = zip(*known, strict=True)
        return logits.at[:, mx.array(ids)].add(mx.array(values, dtype=logits.dtype))

    return process


def _no_end(end_ids: frozenset[int], min_tokens: int, prompt_tokens: int) -> Processor:
    """Before `min_tokens` of the reply, none of these ids."""

    def process(context: mx.array, logits: mx.array) -> mx.array:
        ends = [token_id for token_id in sorted(end_ids) if 0 <= token_id < logits.shape[-1]]
        if ends and context.size - prompt_tokens < min_tokens:
            logits[:, mx.array(ends)] = -mx.inf
        return logits

    return process


def _budget(budget: ReasoningBudget, prompt_tokens: int) -> Processor:
    """Leaves only the forced id. Reads ids from the device (a sync) only once the budget is used up."""

    def process(context: mx.array, logits: mx.array) -> mx.array:
        if budget.free(context.size - prompt_tokens):
            return logits
        forced = budget.forced(cast("list[int]", context[prompt_tokens:].tolist()))
        if forced is None:
            return logits
        return mx.where(mx.arange(logits.shape[-1]) == forced, mx.array(0.0, logits.dtype), -mx.inf)[None]

    return process


def _repetition(penalty: float) -> Processor:
    """Once for each distinct id of prompt and reply: a positive logit divided, a negative one multiplied."""

    def process(context: mx.array, logits: mx.array) -> mx.array:
        seen = logits[:, context]
        logits[:, context] = mx.where(seen < 0, seen * penalty, seen / penalty)
        return logits

    return process


def _reply_penalty(sampling: Sampling, prompt_tokens: int) -> Processor:
    """OpenAI's: minus presence once, and minus frequency times the count, for each id of the reply so far."""

    def process(context: mx.array, logits: mx.array) -> mx.array:
        reply = context[prompt_tokens:]
        if reply.size == 0:
            return logits
        counts = mx.zeros((logits.shape[-1],), dtype=mx.float32).at[reply].add(1.0)
        return logits - (sampling.presence_penalty * (counts > 0) + sampling.frequency_penalty * counts)

    return process
