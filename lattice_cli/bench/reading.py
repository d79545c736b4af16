"""What one streamed reply said, and what can be counted from it: an Answer, or a Miss with its reason.

Tokens are counted from `usage` alone: a chunk may hold no token, one or several. Knows the frames of
OpenAI's streams; knows no sockets and no clock.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice_cli.bench.stats import rate


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply that holds. Counts are the server's `usage`, seconds are this client's clock.

    `first_token_s` runs from before the connection is opened to the first text, `last_token_s` to the
    last, `total_s` to the end of the stream; `gaps_s` lie between texts.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token_s: float
    last_token_s: float
    total_s: float
    gaps_s: tuple[float, ...]
    finish_reason: str

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens that were not cached, per second until the first token."""
        return rate(self.prompt_tokens - self.cached_tokens, self.first_token_s)

    @property
    def decode_rate(self) -> float | None:
        """Tokens after the first, per second between the first text and the last."""
        return rate(self.completion_tokens - 1, self.last_token_s - self.first_token_s)

    @property
    def whole_rate(self) -> float | None:
        """All tokens of the reply per second of the whole request."""
        return rate(self.completion_tokens, self.total_s)


@dataclass(frozen=True, slots=True)
class Miss:
    """A request that brought no countable reply, and why."""

    reason: str


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class Frame(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


@dataclass(slots=True)
class Reading:
    """What has been heard of one reply."""

    times_s: list[float] = field(default_factory=list)
    usage: _Usage | None = None
    finish_reason: str | None = None

    def take(self, frame: Frame, now_s: float) -> None:
        self.usage = frame.usage or self.usage
        for choice in frame.choices:
            self.finish_reason = choice.finish_reason or self.finish_reason
            if choice.delta.content or choice.delta.reasoning_content or choice.delta.reasoning:
                self.times_s.append(now_s)

    def outcome(self, total_s: float) -> Answer | Miss:
        if self.finish_reason is None:
            return Miss("the stream ended before the reply did (no finish_reason)")
        if self.usage is None:
            return Miss("the server sends no usage in streams, so its tokens cannot be counted")
        if not self.times_s or self.usage.completion_tokens == 0:
            return Miss("the reply is empty")
        details = self.usage.prompt_tokens_details
        return Answer(
            prompt_tokens=self.usage.prompt_tokens,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
            completion_tokens=self.usage.completion_tokens,
            first_token_s=self.times_s[0],
            last_token_s=self.times_s[-1],
            total_s=total_s,
            gaps_s=tuple(later - earlier for earlier, later in zip(self.times_s, self.times_s[1:], strict=False)),
            finish_reason=self.finish_reason,
        )
