"""Two or more servers by turns, A B B A: the same questions to each, and ratios with an interval.

A word is said only when the interval does not hold 1. Knows contenders and questions; knows no processes.

Thread: any
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from lattice_cli.bench.contender import Contender
from lattice_cli.bench.load import Question, ask
from lattice_cli.bench.noise import Noise, Watch
from lattice_cli.bench.questions import Source
from lattice_cli.bench.reading import Answer, Miss
from lattice_cli.bench.stats import Ratio, paired_ratio

Figure = Callable[[Answer], float | None]

FIGURES: dict[str, tuple[Figure, bool]] = {  # and whether more of it is faster
    "first_token_ms": (lambda answer: 1000 * answer.first_token_s, False),
    "prefill_tok_s": (lambda answer: answer.prefill_rate, True),
    "decode_tok_s": (lambda answer: answer.decode_rate, True),
    "whole_ms": (lambda answer: 1000 * answer.total_s, False),
}
TOO_FEW = "too few rounds"


@dataclass(frozen=True, slots=True)
class Turn:
    """One question to one contender (by its place), in a round. A round is A B B A, so two turns each."""

    place: int
    round: int
    outcome: Answer | Miss
    noise: Noise


def letter(place: int) -> str:
    return string.ascii_uppercase[place]


def run_turns(
    contenders: Sequence[Contender], source: Source, rounds: int, first: int, watch: Watch, wait_quiet_s: float = 0.0
) -> Iterator[Turn]:
    """`rounds` rounds; both passes of a round have a question of their own, the same for all. `first` is its number."""
    places = list(range(len(contenders)))
    for number in range(rounds):
        for half, order in enumerate((places, places[::-1])):
            for place in order:
                contender = contenders[place]
                question = for_model(source.question(first + 2 * number + half), contender.model)
                watch.begin(wait_quiet_s)
                outcome = ask(contender.target, question)
                yield Turn(place, number, outcome, watch.end())


def for_model(question: Question, model: str) -> Question:
    """The same question to another model."""
    return replace(question, model=model)


def values(turns: Sequence[Turn], place: int, name: str) -> dict[int, float]:
    """Round -> the mean of a figure over a contender's turns in it; rounds without an answer are left out."""
    read, found = FIGURES[name][0], dict[int, list[float]]()
    for turn in turns:
        if turn.place == place and isinstance(turn.outcome, Answer) and (value := read(turn.outcome)) is not None:
            found.setdefault(turn.round, []).append(value)
    return {number: fmean(several) for number, several in found.items()}


def ratio(turns: Sequence[Turn], place: int, name: str, seed: int) -> Ratio | None:
    """A contender's figure over the first one's, paired by rounds; None where no round has both."""
    theirs, ours = values(turns, 0, name), values(turns, place, name)
    both = sorted(theirs.keys() & ours.keys())
    return paired_ratio([ours[at] for at in both], [theirs[at] for at in both], seed)


def word(found: Ratio, name: str) -> str:
    """`faster` or `slower` where the interval excludes 1; `no difference seen`; or that rounds were too few."""
    if found.tells:
        return "faster" if (found.ratio > 1) == FIGURES[name][1] else "slower"
    return "no difference seen" if found.low <= 1 <= found.high else TOO_FEW
