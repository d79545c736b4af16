"""Random conversations of several clients against one engine with a prefix cache, and the same jobs on fresh engines.

Each round every client says something: it goes on, edits its last turn or an earlier one, branches off what another
client has, or asks the same again. Rounds run interleaved, and some jobs are cancelled at a random step.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from lattice_cli.engine.engine import Engine
from lattice_cli.engine.mlx_backend import MlxBackend
from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.engine.prefix_states import keeper_of
from lattice_cli.events import Event, Finished, Piece
from lattice_cli.job import Job, Limits, Prompt, Sampling
from lattice_cli.model.card import ModelCard
from lattice_cli.model.network import make_caches
from lattice_cli.settings import EngineSettings

Ids = tuple[int, ...]
CLIENTS = 4
ROUNDS = 5
GREEDY = Sampling(temperature=0.0)


@dataclass
class Talk:
    """One client's turns, each the ids of a question or of a reply."""

    turns: list[Ids] = field(default_factory=list)

    def prompt(self) -> Prompt:
        ids: list[int] = []
        cuts = []
        for turn in self.turns:
            cuts.append(len(ids))
            ids += turn
        return Prompt(tuple(ids), "", cuts=tuple(cuts[1:]))


@dataclass(frozen=True)
class Answer:
    """What a job said: its ids with the log-probability of each, and what of its prompt was cached."""

    prompt: Prompt
    ids: Ids
    logprobs: tuple[float, ...]
    cached: int
    cancelled: bool


class Meeting:
    """`CLIENTS` talks from one seed. Ids are below `tokens`, prompts stay below `longest` of them; the
    smallest cache has `little` bytes.
    """

    def __init__(
        self, network: Any, card: ModelCard, seed: int, *, longest: int, tokens: int = 258, little: int = 300_000
    ) -> None:
        self.draw = random.Random(seed)
        self.network, self.card = network, card
        self._longest, self._tokens = longest, tokens
        budget = self.draw.choice([little, 10 * little, 10**9])  # some drive entries out all the time
        self.cache = PrefixCache(keeper_of(make_caches(network)), budget)
        chunk = self.draw.choice([24, 64, 200])
        self._engine = Engine(card, MlxBackend(network, CLIENTS, chunk, prefix=self.cache), EngineSettings())
        self._talks = [Talk() for _ in range(CLIENTS)]
        self._number = 0

    def run(self) -> list[Answer]:
        """All rounds; every answer, in the order asked."""
        answers: list[Answer] = []
        for _ in range(ROUNDS):
            for talk in self._talks:
                self._say(talk)
            made = self._round()
            for talk, answer in zip(self._talks, made, strict=True):
                talk.turns.append(answer.ids)
            answers += made
        self._engine.close()
        assert (self.cache.stats.bytes, self.cache.stats.entries) == (0, 0)
        return answers

    def _say(self, talk: Talk) -> None:
        """Change a talk so that it ends with a question."""
        draw, turns = self.draw, talk.turns
        asked = list(range(0, len(turns), 2))
        way = draw.choice(["on", "on", "on", "last", "earlier", "branch", "again"]) if turns else "on"
        if sum(map(len, turns)) > self._longest - 80:
            way = "first"
        if way == "on":
            turns.append(self._question())
        elif way == "again":
            turns.pop()
        elif way == "branch":
            other = draw.choice(self._talks)
            talk.turns = [*other.turns[: draw.randrange(0, len(other.turns) + 1, 2)], self._question()]
        else:
            place = {"first": asked[0], "last": asked[-1], "earlier": draw.choice(asked)}[way]
            old = turns[place]
            keep = draw.choice([0, len(old) // 2, max(0, len(old) - 3)])
            talk.turns = [*turns[:place], (*old[:keep], *self._question())[: max(60, len(old))]]

    def _question(self) -> Ids:
        length = self.draw.choice([1, 5, 20, 60])
        return tuple(self.draw.randrange(1, self._tokens) for _ in range(length))

    def _round(self) -> list[Answer]:
        jobs = []
        for talk in self._talks:
            self._number += 1
            limits = Limits(self.draw.choice([1, 4, 12]))
            jobs.append(Job(f"job{self._number}", talk.prompt(), GREEDY, limits, logprobs=0))
        leaves = {self.draw.randrange(1, 12): job for job in jobs if self.draw.random() < 0.25}
        events: list[Event] = []
        unasked = list(jobs)
        for step in range(5000):
            if unasked and self.draw.random() < 0.5:
                self._engine.add(unasked.pop(0))
            if not unasked and self._engine.idle:
                break
            events += self._engine.step()
            if step in leaves and leaves[step] not in unasked:
                events += self._engine.cancel(leaves[step].id)
        assert self.cache.stats.bytes <= self.cache.stats.budget_bytes
        return [answer_of(job, events) for job in jobs]


def answer_of(job: Job, events: list[Event]) -> Answer:
    (end,) = [event for event in events if isinstance(event, Finished) and event.job_id == job.id]
    scores = [
        score for event in events if isinstance(event, Piece) and event.job_id == job.id for score in event.scores
    ]
    return Answer(
        job.prompt,
        tuple(score.token_id for score in scores),
        tuple(score.logprob for score in scores),
        end.usage.cached_tokens,
        end.reason == "cancelled",
    )


def alone(network: Any, card: ModelCard, prompt: Prompt, tokens: int) -> Answer:
    """The same on a fresh engine without a cache."""
    engine = Engine(card, MlxBackend(network, 1, 512), EngineSettings())
    job = Job("alone", prompt, GREEDY, Limits(tokens), logprobs=0)
    engine.add(job)
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
    engine.close()
    return answer_of(job, events)
