"""What an answer cost: tokens, as OpenAI counts them, and times, under a name that clients may pass by.

Thread: any
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lattice_cli.events import Finished


def usage_of(finished: Sequence[Finished], choices: int = 1) -> dict[str, Any]:
    """Counts over all replies; a prompt that `choices` of them share counts once."""
    prompt = sum(one.usage.prompt_tokens for one in finished) // choices
    completion = sum(one.usage.completion_tokens for one in finished)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(one.usage.cached_tokens for one in finished) // choices},
        "completion_tokens_details": {"reasoning_tokens": sum(one.usage.reasoning_tokens for one in finished)},
    }


def timings_of(finished: Sequence[Finished]) -> dict[str, float]:
    """Milliseconds, of several replies the longest; the rate is of all their tokens after the first ones."""
    decode_s = max((one.timing.decode_s for one in finished), default=0.0)
    tokens = sum(max(0, one.usage.completion_tokens - 1) for one in finished)
    spans = {
        "queued_ms": [one.timing.queued_s for one in finished],
        "prefill_ms": [one.timing.prefill_s for one in finished],
        "first_token_ms": [one.timing.first_token_s for one in finished],
        "decode_ms": [decode_s],
    }
    told = {name: round(max(seconds, default=0.0) * 1000, 3) for name, seconds in spans.items()}
    return {**told, "tokens_per_second": round(tokens / decode_s, 2) if decode_s > 0 else 0.0}
