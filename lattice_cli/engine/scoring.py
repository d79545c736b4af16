"""Prompts read for the log-probabilities of their tokens (echo): first come, first served, a chunk between two steps.

Knows a backend that reads, and tokens; knows no rows. A fault while it reads is the fault of what it reads, and
touches no row's cache.

Thread: worker
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from lattice_cli.engine.reply import Score
from lattice_cli.errors import LatticeError
from lattice_cli.events import Event, Failed, Finished, FinishReason, Scored, Timing, TokenScore, Usage
from lattice_cli.job import ScoreJob
from lattice_cli.model.card import Tokenizer


class PromptReader(Protocol):
    """A backend, as far as this goes."""

    def score(self, ids: tuple[int, ...], top: int) -> Iterator[list[Score]]:
        """The scores of the second token and those after it, a chunk at a time. Closing it lets go of its memory."""


class Scoring:
    """Score jobs in line. `working` while one is being read: an exception from `advance` is its own."""

    def __init__(self, reader: PromptReader, tokenizer: Tokenizer) -> None:
        self._reader = reader
        self._tokenizer = tokenizer
        self._waiting: deque[ScoreJob] = deque()
        self._chunks: Iterator[list[Score]] | None = None  # of the first in line
        self._scores: list[Score] = []
        self.working = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: ScoreJob) -> None:
        self._waiting.append(job)

    def advance(self) -> list[Event]:
        """Read one chunk; the event of a job that is done with it."""
        if not self._waiting:
            return []
        job = self._waiting[0]
        self.working = True
        if self._chunks is None:
            self._chunks = self._reader.score(job.ids, job.top)
        chunk = next(self._chunks, None)
        self.working = False
        if chunk is not None:
            self._scores += chunk
            return []
        named = [self._named(token_id, *score) for token_id, score in zip(job.ids[1:], self._scores, strict=True)]
        self._leave()
        return [Scored(job.id, (*map(self._tokenizer.token_bytes, job.ids[:1]), *named))]

    def fail(self, error: LatticeError) -> list[Event]:
        """The first in line cannot be read."""
        self.working = False
        job = self._waiting[0]
        self._leave()
        return [Failed(job.id, error)]

    def abort(self, error: LatticeError) -> list[Event]:
        """Nobody in line will be read."""
        return [event for _ in range(len(self._waiting)) for event in self.fail(error)]

    def cancel(self, job_id: str) -> list[Event]:
        """Leave the line, wherever; empty for an id that is not in it."""
        return [event for job in list(self._waiting) if job.id == job_id for event in self._end(job, "cancelled")]

    def expire(self, now_s: float) -> list[Event]:
        """Who is late leaves the line."""
        late = [job for job in self._waiting if job.deadline_s is not None and now_s >= job.deadline_s]
        return [event for job in late for event in self._end(job, "deadline")]

    def _end(self, job: ScoreJob, reason: FinishReason) -> list[Event]:
        if job is self._waiting[0]:
            self._leave()
        else:
            self._waiting.remove(job)
        return [Finished(job.id, reason, Usage(prompt_tokens=len(job.ids)), Timing())]

    def _leave(self) -> None:
        self._waiting.popleft()
        self._chunks, self._scores = None, []

    def _named(self, token_id: int, logprob: float, top: tuple[tuple[int, float], ...]) -> TokenScore:
        spelled = self._tokenizer.token_bytes
        return TokenScore(token_id, spelled(token_id), logprob, tuple((spelled(one), value) for one, value in top))
