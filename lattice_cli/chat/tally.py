"""What a chat has cost so far: the counts and times of its answers, added up.

Thread: any
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lattice_cli.events import Finished


@dataclass(slots=True)
class Tally:
    """Owned by the talk. `decoded` are the tokens after each answer's first, which `decode_s` is the time of."""

    answers: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    decoded: int = 0

    def add(self, finished: Finished) -> None:
        """One more answer."""
        usage, timing = finished.usage, finished.timing
        self.answers += 1
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.completion_tokens += usage.completion_tokens
        self.reasoning_tokens += usage.reasoning_tokens
        self.first_token_s += timing.first_token_s
        self.decode_s += timing.decode_s
        self.decoded += max(0, usage.completion_tokens - 1)

    def rows(self) -> Sequence[tuple[str, str]]:
        """For people; only what was measured."""
        rows = [("answers", f"{self.answers}")]
        if self.prompt_tokens:
            reused = f", {self.cached_tokens:,} of them reused" if self.cached_tokens else ""
            rows.append(("prompt tokens", f"{self.prompt_tokens:,}{reused}"))
        if self.completion_tokens:
            thought = f", {self.reasoning_tokens:,} of them thoughts" if self.reasoning_tokens else ""
            rows.append(("answer tokens", f"{self.completion_tokens:,}{thought}"))
        if self.decoded and self.decode_s > 0:
            rows.append(("speed", f"{self.decoded / self.decode_s:.1f} tok/s"))
        if self.answers and self.first_token_s:
            rows.append(("first token", f"after {self.first_token_s / self.answers:.2f} s on average"))
        return rows
