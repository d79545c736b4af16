"""All an engine can say about a job. Python values only: no arrays, no exceptions in flight.

Grammar of one job's events:

    (Started Prefilled* (Piece | CallPart)*)? (Finished | Failed)

A job cancelled while it waits has only its terminal event. Of a ScoreJob there is only (Scored | Finished | Failed);
it is Finished only when it was cancelled or late.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lattice_cli.errors import LatticeError
from lattice_cli.job import Channel

# "cancelled" and "deadline" are the engine's words: no client is told them as the reason of an answer.
FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "deadline"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. `completion_tokens` holds thoughts and answer, never the end token."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one monotonic clock.

    `queued_s` until a slot was free; `prefill_s` from there to the end of the prompt; `first_token_s`
    from submission to the first token; `decode_s` from the first token to the end.
    """

    queued_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0

    def decode_rate(self, completion_tokens: int) -> float:
        """Tokens per second after the first one; 0 when there were fewer than two."""
        return (completion_tokens - 1) / self.decode_s if completion_tokens > 1 and self.decode_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Started:
    """A slot is this job's; the 200 of a stream may be committed."""

    job_id: str
    prompt_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """`done` of `total` prompt tokens are read."""

    job_id: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One token of a reply and its log-probability: log-softmax of the raw logits, before penalties, bias, grammar
    and temperature. `data` are its bytes; `top` are (data, log-probability) of the likeliest tokens, best first.
    """

    token_id: int
    data: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is certain: whole code points, no part of a marker or stop string.

    `scores` are of the tokens that came since the last piece, where a job asked for them; a piece may have scores
    and no text.
    """

    job_id: str
    channel: Channel
    text: str
    scores: tuple[TokenScore, ...] = ()


@dataclass(frozen=True, slots=True)
class CallPart:
    """A part of a tool call: `name` with the first part of call number `index`, None afterwards; `arguments` is a
    fragment of its JSON text. The fragments of a call, joined, are valid JSON, unless the reply was cut inside it or
    the model wrote what has no reading as JSON.
    """

    job_id: str
    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The reply ended. `stopped_by` is the stop string that ended it, if one did; `end` is the score of the end token,
    where that ended it and scores were asked for.
    """

    job_id: str
    reason: FinishReason
    usage: Usage
    timing: Timing
    stopped_by: str | None = None
    end: TokenScore | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The reply could not be finished; what was sent before stays valid."""

    job_id: str
    error: LatticeError


@dataclass(frozen=True, slots=True)
class Scored:
    """The one answer to a `ScoreJob`: its tokens in order. The first has nothing before it to be likely after, and is
    given by its bytes.
    """

    job_id: str
    scores: tuple[TokenScore | bytes, ...]


Event = Started | Prefilled | Piece | CallPart | Finished | Failed | Scored
