"""Several clients at once against one server: which questions they ask, and what came of them.

The length of a prompt is asked for in tokens but a client has no tokenizer, so two short probes tell how
many tokens a word and the chat template take; what was really read is reported from `usage`.

Thread: any
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lattice_cli.bench.load import Question, Target, ask
from lattice_cli.bench.reading import Answer, Miss
from lattice_cli.errors import BenchError

WORDS = ("time", "way", "day", "man", "world", "life", "hand", "part", "place", "case", "week", "work", "point", "home")
TASK = "Write a very long story about these words, with many chapters."
PROBE_WORDS = (16, 112)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """`clients` at once, each asking `trials` questions one after another, after `warmups` by one alone.

    `seed` makes the questions' openings unlike those of any run with another seed.
    """

    model: str
    prompt_tokens: int
    max_tokens: int
    clients: int
    trials: int
    warmups: int
    seed: int

    def question(self, number: int, words: int, max_tokens: int | None = None) -> Question:
        """Question `number` of this run with that many filler words."""
        filler = " ".join(WORDS[place % len(WORDS)] for place in range(words))
        label = f"{self.seed + number:x}"[::-1]  # the digit that changes comes first
        opening = f"{label} is your number."
        return Question(self.model, opening, f"{filler}\n{TASK}", max_tokens or self.max_tokens)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """All outcomes of the measured questions, and the wall clock from the first to the last of them."""

    answers: tuple[Answer, ...]
    misses: tuple[Miss, ...]
    wall_s: float


def run_load(target: Target, plan: LoadPlan, say: Callable[[str], None] = lambda line: None) -> LoadResult:
    """Probe, warm up, measure. `say` hears how far it is.

    Raises: BenchError when the server does not answer the probes.
    """
    words = _words_for(target, plan)
    asked = len(PROBE_WORDS)
    for number in range(plan.warmups):
        say(f"warm-up {number + 1} of {plan.warmups}")
        ask(target, plan.question(asked + number, words))
    asked += plan.warmups
    questions = [plan.question(asked + number, words) for number in range(plan.clients * plan.trials)]
    say(f"{len(questions)} requests by {plan.clients} client(s) at once")
    began_s = time.monotonic()
    outcomes = _ask_all(target, questions, plan.clients)
    wall_s = time.monotonic() - began_s
    answers = tuple(outcome for outcome in outcomes if isinstance(outcome, Answer))
    misses = tuple(outcome for outcome in outcomes if isinstance(outcome, Miss))
    return LoadResult(answers, misses, wall_s)


def _ask_all(target: Target, questions: Sequence[Question], clients: int) -> list[Answer | Miss]:
    """Every question's outcome, by `clients` threads. They are daemons, so that Ctrl-C ends the run at once."""
    waiting, outcomes = deque(questions), deque[Answer | Miss]()

    def client() -> None:
        while True:
            try:
                question = waiting.popleft()
            except IndexError:
                return
            outcomes.append(ask(target, question))

    threads = [threading.Thread(target=client, name=f"client-{number}", daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(outcomes)


def _words_for(target: Target, plan: LoadPlan) -> int:
    """How many filler words make `plan.prompt_tokens`: a straight line through two probes."""
    counts = []
    for number, words in enumerate(PROBE_WORDS):
        outcome = ask(target, plan.question(number, words, max_tokens=2))
        if isinstance(outcome, Miss):
            raise BenchError(f"the server does not answer: {outcome.reason}", hint="check --url and --model")
        counts.append(outcome.prompt_tokens)
    per_word = (counts[1] - counts[0]) / (PROBE_WORDS[1] - PROBE_WORDS[0])
    if per_word <= 0:  # a server that counts no prompt tokens, or a scripted one
        return plan.prompt_tokens
    fixed = counts[0] - per_word * PROBE_WORDS[0]
    return max(1, round((plan.prompt_tokens - fixed) / per_word))
