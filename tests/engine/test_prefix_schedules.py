"""Thousands of random schedules over a network on paper: whatever comes when, is cancelled or fails, each reply is what
it is alone, and each entry of the prefix cache holds exactly its ids.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from lattice_cli.engine.engine import Engine
from lattice_cli.engine.mlx_backend import MlxBackend
from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.engine.prefix_states import keeper_of
from lattice_cli.events import Event, Failed, Finished, Started
from lattice_cli.job import Job, Limits, Prompt, Sampling
from lattice_cli.settings import EngineSettings
from tests.engine.fake import text_of
from tests.engine.paper import Ids, PaperNetwork, reply
from tests.engine.test_backend import CARD

pytestmark = [pytest.mark.tiny, pytest.mark.timeout(600)]

A_BATCH = 20  # schedules a test
BATCHES = [pytest.param(number, marks=[pytest.mark.slow] if number >= 6 else []) for number in range(150)]


@dataclass
class Schedule:
    """One seed's: prompts that begin alike, at any time, cancelled at any time, over a network that may fail."""

    seed: int
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draw = draw = random.Random(self.seed)
        self.network = PaperNetwork(trims=draw.random() < 0.5, fault=self.fault)
        self.cache = PrefixCache(keeper_of(self.network.make_cache()), draw.choice([40, 200, 10_000]))
        backend = MlxBackend(self.network, draw.randint(1, 5), draw.choice([5, 16, 64]), prefix=self.cache)
        self.engine = Engine(CARD, backend, EngineSettings(max_rows=draw.randint(1, 5)))
        self.faults = draw.choice([0.0, 0.0, 0.02])
        self.texts: list[Ids] = [()]
        self.jobs: dict[str, Job] = {}

    def fault(self) -> None:
        if self.draw.random() < self.faults:
            raise RuntimeError("by chance")

    def run(self) -> None:
        unasked, asked = self.draw.randint(3, 9), []
        for _ in range(3000):
            if unasked and self.draw.random() < 0.3:
                unasked -= 1
                jobs = self.ask()
                asked += [job.id for job in jobs]
                self.engine.add(*jobs)
            if asked and self.draw.random() < 0.02:
                self.events += self.engine.cancel(self.draw.choice(asked))
            if not unasked and self.engine.idle:
                break
            try:
                self.events += self.engine.step()
            except RuntimeError as fault:
                self.events += self.engine.reset(fault)
            self.check_cache()
        self.check_replies()
        self.engine.close()
        assert (self.cache.stats.bytes, self.cache.stats.entries) == (0, 0)

    def ask(self) -> list[Job]:
        """One request, of one or several choices, that begins as another does."""
        draw = self.draw
        base = draw.choice(self.texts)
        base = base[: draw.choice([len(base), draw.randint(0, len(base))])]
        ids = (*base, *(draw.randrange(1, 4) for _ in range(draw.choice([1, 3, 20, 60]))))
        self.texts.append((*ids, *reply(ids, 6)))
        cuts = tuple(sorted(draw.sample(range(1, len(ids) + 1), min(len(ids), draw.randint(0, 3)))))
        prompt, tokens, choices = Prompt(ids, "", cuts=cuts), draw.choice([1, 6, 25]), draw.choice([1, 1, 1, 3])
        start = len(self.jobs)
        jobs = [
            Job(f"job{start + n}", prompt, Sampling(temperature=0.0), Limits(tokens), choice=n) for n in range(choices)
        ]
        self.jobs |= {job.id: job for job in jobs}
        return jobs

    def check_cache(self) -> None:
        assert self.cache.stats.bytes <= self.cache.stats.budget_bytes
        for ids, kept in self.cache.entries():
            assert kept.state.rows[0].ids == ids
            assert len(ids) == kept.tokens

    def check_replies(self) -> None:
        ends = {event.job_id: event for event in self.events if isinstance(event, Finished | Failed)}
        started = {event.job_id: event for event in self.events if isinstance(event, Started)}
        assert ends.keys() == self.jobs.keys()
        for job in self.jobs.values():
            said, ids, end = text_of(self.events, job.id), job.prompt.ids, ends[job.id]
            whole = "".join(map(chr, reply(ids, job.limits.max_tokens)))
            assert whole.startswith(said)
            if isinstance(end, Finished):
                assert said == whole or end.reason == "cancelled"
                assert 0 <= end.usage.cached_tokens < len(ids)
                first = started[job.id].cached_tokens if job.id in started else 0
                assert first <= end.usage.cached_tokens or self.faults  # who starts over may find less
            else:
                assert self.faults


@pytest.mark.parametrize("batch", BATCHES)
def test_every_reply_is_what_it_is_alone_and_every_entry_is_its_ids(batch: int) -> None:
    """Reports 67 to 71. A failing seed is in the assertion's line: run `Schedule(seed).run()`."""
    for seed in range(batch * A_BATCH, (batch + 1) * A_BATCH):
        try:
            Schedule(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


def test_the_schedules_reuse_much() -> None:
    """Without it the test above would prove nothing. How many rows a fault meets depends on the clock, too."""
    reused = faulty = 0
    for seed in range(200):
        schedule = Schedule(seed)
        schedule.run()
        reused += schedule.cache.stats.hits
        faulty += any(isinstance(event, Failed) for event in schedule.events)
        if reused > 40 and faulty:
            break
    assert reused > 40
    assert faulty > 0
