"""What one streamed reply said, and what can be counted from it: an Answer, or a Miss with its reason.

Tokens are counted from `usage`, or by a tokenizer over the whole text; a chunk may hold no token, one or several,
and a proxy may send several chunks in one packet. Knows the frames of OpenAI's streams; knows no sockets and no clock.

Thread: any
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice_cli.bench.stats import rate

CountTokens = Callable[[str], int]
LIE_TOKENS, LIE_SHARE = 3, 0.05  # an end token, a joint between thought and answer; more is no rounding


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply that holds. Seconds are this client's clock, from before the connection is opened.

    `completion_tokens` are the server's `usage`, or `own_tokens` where it sends none; thoughts are among them, and
    `hidden_tokens` are those of thoughts that it told but did not send: they came before the first text.
    `first_token_s` and `last_token_s` are the first and last text, `total_s` the end of the stream. `gaps_s` lie
    between arrivals, and `first_share` is which part of all chunks the first arrival held.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token_s: float
    last_token_s: float
    total_s: float
    gaps_s: tuple[float, ...]
    finish_reason: str
    reasoning_tokens: int | None = None
    own_tokens: int | None = None
    hidden_tokens: int = 0
    first_share: float = 0.0
    doubt: str | None = None

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens that were not cached, per second until the first token."""
        return rate(self.prompt_tokens - self.cached_tokens, self.first_token_s)

    @property
    def decode_rate(self) -> float | None:
        """Tokens after the first arrival, per second between the first text and the last. Where chunks come singly
        that is (tokens - 1) / seconds; what was hidden, or came joined in the first packet, took no time between them.
        """
        shown = self.completion_tokens - self.hidden_tokens
        first = max(1.0, self.first_share * shown)
        return rate(shown - first, self.last_token_s - self.first_token_s)

    @property
    def whole_rate(self) -> float | None:
        """All tokens of the reply per second of the whole request."""
        return rate(self.completion_tokens, self.total_s)


@dataclass(frozen=True, slots=True)
class Miss:
    """A request that brought no countable reply: why, and of which kind."""

    reason: str
    kind: str = "other"


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Thought(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None
    completion_tokens_details: _Thought | None = None


class Frame(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


@dataclass(slots=True)
class Reading:
    """What has been heard of one reply that may be `max_tokens` long; `count` is a tokenizer's, where there is one."""

    max_tokens: int
    count: CountTokens | None = None
    times_s: list[float] = field(default_factory=list)  # of chunks with text
    texts: list[str] = field(default_factory=list)
    thinks_aloud: bool = False
    usage: _Usage | None = None
    finish_reason: str | None = None

    def take(self, frame: Frame, now_s: float) -> None:
        """A frame whose last byte came at `now_s`; frames of one packet have the same time."""
        self.usage = frame.usage or self.usage
        for choice in frame.choices:
            self.finish_reason = choice.finish_reason or self.finish_reason
            delta = choice.delta
            thought = delta.reasoning_content or delta.reasoning or ""
            self.thinks_aloud = self.thinks_aloud or bool(thought)
            if text := thought + (delta.content or ""):
                self.times_s.append(now_s)
                self.texts.append(text)

    def outcome(self, total_s: float) -> Answer | Miss:
        if self.finish_reason is None:
            return Miss("the stream ended before the reply did (no finish_reason)", "cut short")
        if self.usage is None and self.count is None:
            return Miss("the server sends no usage in streams, so its tokens cannot be counted", "no usage")
        if not self.times_s or (self.usage is not None and self.usage.completion_tokens == 0):
            return Miss("the reply is empty", "empty")
        own_tokens = self.count("".join(self.texts)) if self.count is not None else None
        usage = self.usage or _Usage(0, own_tokens or 0)
        cached, details = usage.prompt_tokens_details, usage.completion_tokens_details
        thoughts = details.reasoning_tokens if details else None
        shown = self.thinks_aloud or self.texts[0].lstrip().startswith("<think")
        arrivals_s = sorted(set(self.times_s))
        return Answer(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=(cached.cached_tokens or 0) if cached else 0,
            completion_tokens=usage.completion_tokens,
            first_token_s=arrivals_s[0],
            last_token_s=arrivals_s[-1],
            total_s=total_s,
            gaps_s=tuple(later - earlier for earlier, later in itertools.pairwise(arrivals_s)),
            finish_reason=self.finish_reason,
            reasoning_tokens=thoughts,
            own_tokens=own_tokens,
            hidden_tokens=0 if shown else min(thoughts or 0, usage.completion_tokens - 1),
            first_share=self.times_s.count(arrivals_s[0]) / len(self.times_s),
            doubt=self._doubt(usage.completion_tokens, own_tokens, thoughts),
        )

    def _doubt(self, told: int, own: int | None, thoughts: int | None) -> str | None:
        """Why `usage` cannot be true; None when nothing speaks against it.

        More tokens than were shown may be thoughts that are kept back, where the server says so.
        """
        if told > self.max_tokens:
            return f"usage says {told} tokens, and {self.max_tokens} were asked for"
        slack = max(LIE_TOKENS, LIE_SHARE * told)
        if own is not None:
            if own - told > slack or (told - own > slack and told - own > (thoughts or 0)):
                return f"usage says {told} tokens, and the text has {own}"
            return None
        shown = len("".join(self.texts).encode("utf-8", "surrogatepass"))
        if told - (thoughts or 0) > shown + slack:
            return f"usage says {told} tokens, and the text has {shown} bytes"
        return None
