"""What a server does under strain: the first token beside long replies, and after the clients of those left.

Thread: any
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from lattice_cli.bench.crowd import Numbers, start_client
from lattice_cli.bench.load import Question, Target, ask
from lattice_cli.bench.questions import Source
from lattice_cli.bench.reading import Answer

LONG_TOKENS = 512
SHORT_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Strain:
    """First tokens of a short reply, in seconds: alone, beside `streams` long replies, and right after the clients of
    as many left. What the last takes beyond the first is the time until the next request runs.
    """

    streams: int
    alone_s: tuple[float, ...]
    beside_s: tuple[float, ...]
    after_s: tuple[float, ...]


def run_strain(target: Target, source: Source, streams: int, trials: int, first: int) -> Strain:
    """Measure each `trials` times; outcomes that are misses are left out."""
    numbers = Numbers(first)

    def short() -> float | None:
        outcome = ask(target, source.question(numbers.next(), max_tokens=SHORT_TOKENS))
        return outcome.first_token_s if isinstance(outcome, Answer) else None

    def crowd() -> _Streams:
        return _Streams(target, [source.question(numbers.next(), max_tokens=LONG_TOKENS) for _ in range(streams)])

    alone = [short() for _ in range(trials)]
    beside, after = [], []
    for _ in range(trials):
        streaming = crowd()
        if streaming.speaking(target.timeout_s):
            beside.append(short())
        streaming.leave()
        streaming = crowd()  # a new one: where there is but one slot, the short question waited for the end of it
        spoke = streaming.speaking(target.timeout_s)
        streaming.leave()
        if spoke:
            after.append(short())
    return Strain(streams, *(tuple(s for s in found if s is not None) for found in (alone, beside, after)))


class _Streams:
    """Long replies that clients listen to until they are told to leave."""

    def __init__(self, target: Target, questions: list[Question]) -> None:
        self._left = threading.Event()
        self._heard = [threading.Event() for _ in questions]
        self._threads = [
            start_client(lambda question=question, heard=heard: self._listen(target, question, heard))  # type: ignore[misc]
            for question, heard in zip(questions, self._heard, strict=True)
        ]

    def _listen(self, target: Target, question: Question, heard: threading.Event) -> None:
        def at_text() -> bool:
            heard.set()
            return not self._left.is_set()

        ask(target, question, heard=at_text)
        heard.set()

    def speaking(self, limit_s: float) -> bool:
        """Wait until each was heard. Whether any still is."""
        return all(heard.wait(limit_s) for heard in self._heard) and any(thread.is_alive() for thread in self._threads)

    def leave(self) -> None:
        """All leave with their next text. Returns when they have."""
        self._left.set()
        for thread in self._threads:
            thread.join()
