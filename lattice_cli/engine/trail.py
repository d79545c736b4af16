"""Which tokens a piece of text came from: the scores of tokens wait here until their text is certain.

Every stage gives out what it took in, in order, and leaves some of it out (markers, calls, stop strings). So a place
in the reply's whole text is enough to know whose text a piece is. Knows places and scores; knows no stages.

Thread: worker
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from lattice_cli.events import TokenScore

Span = tuple[int, int]  # places in the reply's whole text: from, to


class Trail:
    """What a stage has taken in and not yet given out."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque()

    def push(self, spans: Iterable[Span]) -> None:
        self._spans.extend(spans)

    def take(self, letters: int) -> list[Span]:
        """The places of the next `letters` of them."""
        taken: list[Span] = []
        while letters > 0 and self._spans:
            begin, end = self._spans.popleft()
            if end - begin > letters:
                self._spans.appendleft((begin + letters, end))
                end = begin + letters
            taken.append((begin, end))
            letters -= end - begin
        return taken


class ScoreTrail:
    """Scores whose tokens' text is not certain yet."""

    def __init__(self) -> None:
        self._held: deque[tuple[Span, TokenScore]] = deque()

    def push(self, span: Span, score: TokenScore) -> None:
        """A token whose text is, or is part of, the letters of `span`."""
        self._held.append((span, score))

    def take(self, spans: Iterable[Span]) -> tuple[TokenScore, ...]:
        """The scores of the tokens that these places are of; those before them can come no more and are dropped."""
        taken: list[TokenScore] = []
        for begin, end in spans:
            while self._held and self._held[0][0][0] < end:
                (_, last), score = self._held.popleft()
                if last > begin:
                    taken.append(score)
        return tuple(taken)
