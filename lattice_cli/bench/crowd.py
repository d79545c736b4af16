"""Several clients against one server: a closed loop, in which each asks again when it was answered, or an open one, in
which questions come at random times whether or not those before are answered (Poisson arrivals).

Thread: any
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lattice_cli.bench.load import Clock, Target, ask
from lattice_cli.bench.questions import Source
from lattice_cli.bench.reading import Answer, Miss


@dataclass(frozen=True, slots=True)
class Goal:
    """What a reply must keep to be good, in milliseconds; None asks nothing. `gap_ms` is the mean between tokens."""

    first_token_ms: float | None = None
    gap_ms: float | None = None

    def met(self, answer: Answer) -> bool:
        rate = answer.decode_rate
        slow = self.gap_ms is not None and rate is not None and 1000 / rate > self.gap_ms
        late = self.first_token_ms is not None and 1000 * answer.first_token_s > self.first_token_ms
        return not slow and not late


@dataclass(frozen=True, slots=True)
class Pace:
    """`clients` at once, each asking `trials` questions, or as many as it can begin in `duration_s`. With `rate_s`
    (questions a second) there are no clients: as many questions begin as would have, at random times.
    """

    clients: int
    trials: int
    duration_s: float | None = None
    rate_s: float | None = None

    def arrivals_s(self, seed: int) -> Iterator[float]:
        """When questions begin, of an open loop."""
        assert self.rate_s is not None
        draw, now_s, count = random.Random(seed), 0.0, 0
        while True:
            now_s += draw.expovariate(self.rate_s)
            if now_s > self.duration_s if self.duration_s is not None else count >= self.clients * self.trials:
                return
            yield now_s
            count += 1


@dataclass(frozen=True, slots=True)
class LoadResult:
    """All outcomes of the measured questions, and the wall clock from the first to the last of them."""

    answers: tuple[Answer, ...]
    misses: tuple[Miss, ...]
    wall_s: float


def run_pace(
    target: Target,
    source: Source,
    pace: Pace,
    first: int,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> LoadResult:
    """Ask at a pace; `first` is the number of the first question."""
    outcomes = deque[Answer | Miss]()
    numbers = Numbers(first)
    began_s = clock()
    if pace.rate_s is not None:
        threads = []
        for at_s in pace.arrivals_s(source.seed):
            sleep(max(0.0, began_s + at_s - clock()))
            question = source.question(numbers.next())
            threads.append(start_client(lambda question=question: outcomes.append(ask(target, question))))  # type: ignore[misc]
    else:
        threads = [start_client(lambda: _client(target, source, pace, numbers, outcomes)) for _ in range(pace.clients)]
    for thread in threads:
        thread.join()
    wall_s = clock() - began_s
    answers = tuple(outcome for outcome in outcomes if isinstance(outcome, Answer))
    misses = tuple(outcome for outcome in outcomes if isinstance(outcome, Miss))
    return LoadResult(answers, misses, wall_s)


class Numbers:
    """The numbers of questions, each given once; threads share it."""

    def __init__(self, first: int) -> None:
        self._next, self._lock = first, threading.Lock()

    def next(self) -> int:
        with self._lock:
            self._next += 1
            return self._next - 1


def _client(target: Target, source: Source, pace: Pace, numbers: Numbers, outcomes: deque[Answer | Miss]) -> None:
    until_s = None if pace.duration_s is None else time.monotonic() + pace.duration_s
    asked = 0
    while asked < pace.trials if until_s is None else time.monotonic() < until_s:
        outcomes.append(ask(target, source.question(numbers.next())))
        asked += 1


def start_client(work: Callable[[], object]) -> threading.Thread:
    """A daemon, so that Ctrl-C ends the run at once."""
    thread = threading.Thread(target=work, name="client", daemon=True)
    thread.start()
    return thread
