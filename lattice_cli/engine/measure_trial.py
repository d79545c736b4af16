"""Rows through an engine against a clock: when each prompt was read, and when each token came.

The loop is the worker's without its inbox, so what is measured is the engine and no thread beside it. Knows engines
and clocks; knows no tensors.

Thread: worker
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lattice_cli.engine.backend import Backend, Emitted, Progress
from lattice_cli.engine.completion import Completion
from lattice_cli.engine.engine import Engine
from lattice_cli.engine.reply import Score
from lattice_cli.engine.row import Row
from lattice_cli.errors import BenchError
from lattice_cli.events import Failed
from lattice_cli.job import Job


@dataclass(frozen=True, slots=True)
class RowTimes:
    """One row of a trial. Seconds run from the moment all rows of the trial were asked for: `read_s` to the end of its
    prompt, `tokens_s` to each token of its reply; that moment itself is `began_s` of `time.monotonic`.
    `reasoning_tokens` are among the completion's. `submits_s` are what it took the host to build and submit the pass
    that began as each token came out; None where nobody tells.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    read_s: float
    tokens_s: tuple[float, ...]
    began_s: float = 0.0
    submits_s: tuple[float | None, ...] = ()


@dataclass(slots=True)
class Moments:
    """Readings of the clock for one row."""

    read_s: float | None = None
    tokens_s: list[float] = field(default_factory=list)
    submits_s: list[float | None] = field(default_factory=list)


class PassingBackend:
    """Stands before another backend and hands every call on to it; who watches overrides what it looks at."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def insert(self, row: Row) -> None:
        self._backend.insert(row)

    def advance(self) -> list[Progress | Emitted]:
        return self._backend.advance()

    def remove(self, job_ids: Sequence[str]) -> None:
        self._backend.remove(job_ids)

    def reset(self) -> None:
        self._backend.reset()

    def score(self, ids: tuple[int, ...], top: int) -> Iterator[list[Score]]:
        return self._backend.score(ids, top)

    def ready_in_s(self) -> float | None:
        return self._backend.ready_in_s()

    def close(self) -> None:
        self._backend.close()


class TimedBackend(PassingBackend):
    """Stands between an engine and its backend and writes down when tokens come out. PERF: 0.2 us a token."""

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(backend)
        self.clock = clock
        self.moments: dict[str, Moments] = {}

    def insert(self, row: Row) -> None:
        self.moments.setdefault(row.job.id, Moments())
        self._backend.insert(row)

    def advance(self) -> list[Progress | Emitted]:
        outcomes = self._backend.advance()
        now_s, submit_s = self.clock(), getattr(self._backend, "submit_s", None)
        for outcome in outcomes:
            moments = self.moments.get(outcome.job_id)
            if moments is None:
                continue
            if isinstance(outcome, Emitted):
                moments.tokens_s.append(now_s)
                moments.submits_s.append(submit_s)
            elif outcome.done >= outcome.total and moments.read_s is None:
                moments.read_s = now_s
        return outcomes


def run_rows(
    engine: Engine,
    timed: TimedBackend,
    jobs: Sequence[Job],
    sleep: Callable[[float], None] = time.sleep,
    stopped: Callable[[], bool] = lambda: False,
) -> list[RowTimes]:
    """All jobs at once, to their ends. `stopped` is asked before each step and ends everything early.

    Raises: what a job failed with; BenchError for a reply that has no tokens or no end.
    """
    timed.moments.clear()
    replies = {job.id: Completion(job.id) for job in jobs}
    began_s = timed.clock()
    engine.add(*jobs)
    try:
        while any(reply.finished is None for reply in replies.values()) and not stopped():
            wait_s = engine.ready_in_s()
            if wait_s is None:
                raise BenchError("the model fell silent before its reply ended")
            if wait_s > 0:
                sleep(wait_s)
            for event in engine.step():
                replies[event.job_id].add(event)
                if isinstance(event, Failed):
                    raise event.error
    finally:
        for job in jobs:
            engine.cancel(job.id)
    return [_times(replies[job.id], timed.moments[job.id], began_s) for job in jobs if not stopped()]


def _times(reply: Completion, moments: Moments, began_s: float) -> RowTimes:
    assert reply.finished is not None
    usage = reply.finished.usage
    if usage.completion_tokens == 0 or moments.read_s is None:
        raise BenchError("the model answered with no tokens, so there is nothing to measure")
    shown = usage.completion_tokens
    return RowTimes(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        read_s=moments.read_s - began_s,
        tokens_s=tuple(now_s - began_s for now_s in moments.tokens_s[:shown]),
        began_s=began_s,
        submits_s=tuple(moments.submits_s[:shown]),
    )
