"""What a simulated schedule is played with: a scripted model, a backend with faults, a budget of memory, clients.

Thread: any
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from lattice_cli.engine.backend import Emitted, Progress
from lattice_cli.engine.engine import Engine
from lattice_cli.engine.memory import Growing, Memory, RowCost
from lattice_cli.engine.reply import Score
from lattice_cli.engine.row import Row
from lattice_cli.engine.scripted import Reply, Script, ScriptedBackend, ScriptTokenizer
from lattice_cli.engine.ticket import Ticket
from lattice_cli.events import Event, Finished, Piece
from lattice_cli.job import Channel, Job, Limits, Prompt, Sampling
from lattice_cli.model.card import ModelCard, ModelFormat
from lattice_cli.settings import EngineSettings
from tests.engine.fake import Clock

SCRIPT = Script(
    replies=(
        Reply(tokens=("one ", "two ", "three"), when="short", token_ms=3),
        Reply(tokens=tuple("abcdefghijklmnop"), when="steady", prefill_ms=20, token_ms=2),
        Reply(tokens=("tick ",), when="endless", then="repeat", token_ms=1),
        Reply(tokens=("first", "then nothing"), when="hanging", then="hang"),
        Reply(tokens=("<think>", "why ", "so ", "</think>", "\n", "there", "fore"), when="thoughtful", token_ms=1),
        Reply(tokens=("x ", "y ", "z "), when="faulty", raise_at=2),
        Reply(tokens=(), when="silent"),
    ),
    think=("<think>", "</think>"),
)
ASKED = tuple(reply.when or "" for reply in SCRIPT.replies)
TOKENIZER = ScriptTokenizer(SCRIPT)
CARD = ModelCard(
    served_id="simulated",
    format=ModelFormat("script", "scripted", "none", 4096, 0),
    tokenizer=TOKENIZER,
    context_tokens=4096,
    end_ids=frozenset({TOKENIZER.end_id}),
    think=SCRIPT.think,
)


class Faults:
    """A scripted backend with faults: `chance` of one at a step, which no row owns, or at an insertion, which is its
    row's; rows of `poison` ids bring one with them every time; once `dead`, nothing goes any more. After a fault it
    says wrong tokens until it is reset, as a batch generator does.
    """

    def __init__(self, backend: ScriptedBackend, random_: random.Random, chance: float) -> None:
        self._backend = backend
        self._random = random_
        self._chance = chance
        self._spoilt = False
        self.poison: set[str] = set()
        self.dead = False
        self.rows: set[str] = set()

    def _fault(self, chance: float) -> None:
        if self.dead or self._random.random() < chance:
            self._spoilt = True
            raise RuntimeError("a fault of the backend")

    def insert(self, row: Row) -> None:
        self._fault(self._chance / 4 if row.job.id != "canary" else 0.0)
        self.rows.add(row.job.id)
        self._backend.insert(row)

    def advance(self) -> list[Progress | Emitted]:
        self._fault(1.0 if self.rows & self.poison else self._chance if self.rows - {"canary"} else 0.0)
        outcomes = self._backend.advance()
        if self._spoilt:
            return [replace(one, token_id=ord("!")) if isinstance(one, Emitted) else one for one in outcomes]
        return outcomes

    def remove(self, job_ids: Sequence[str]) -> None:
        self.rows -= set(job_ids)
        self._backend.remove(job_ids)

    def reset(self) -> None:
        self._spoilt = False
        self.rows.clear()
        self._backend.reset()

    def score(self, ids: tuple[int, ...], top: int) -> Iterator[list[Score]]:
        if 99 in ids:
            raise RuntimeError("a fault while a prompt is scored")
        yield from self._backend.score(ids, top)

    def ready_in_s(self) -> float | None:
        return self._backend.ready_in_s()

    def close(self) -> None:
        self._backend.close()


@dataclass
class Client:
    """Who holds a ticket. `reads` is the chance that it reads at a turn, `gulp` how many events it takes then."""

    ticket: Ticket
    reads: float
    gulp: int
    read: list[Event] = field(default_factory=list)
    cancelled: bool = False


@cache
def alone(asked: str, max_tokens: int, prompt_tokens: int, stop: tuple[str, ...]) -> tuple[str, str]:
    """What a job says with nobody beside it, and how it ends; a hanging one says what it says."""
    clock = Clock()
    engine = Engine(CARD, ScriptedBackend(SCRIPT, TOKENIZER, clock), EngineSettings(), clock)
    engine.add(make_job("alone", asked, max_tokens, prompt_tokens, stop))
    events: list[Event] = []
    while (wait_s := engine.ready_in_s()) is not None:
        clock.now_s += wait_s
        events += engine.step()
    return told(events), events[-1].reason if isinstance(events[-1], Finished) else ""


def make_job(
    name: str, asked: str, max_tokens: int, prompt_tokens: int, stop: tuple[str, ...], deadline_s: float | None = None
) -> Job:
    prompt = Prompt((97,) * prompt_tokens, "", asked=asked)
    return Job(name, prompt, Sampling(), Limits(max_tokens, stop, deadline_s=deadline_s))


def told(events: Sequence[Event]) -> str:
    """All text with its channels, however it was cut into pieces."""
    letters = [(event.channel, letter) for event in events if isinstance(event, Piece) for letter in event.text]
    return "".join(letter if channel is Channel.ANSWER else f"~{letter}" for channel, letter in letters)


class Budget:
    """Memory for some rows, and a prefix cache that every row which ends leaves something in."""

    COST = RowCost((Growing(10, 8),), fixed_bytes=100, padded=False)

    def __init__(self, random_: random.Random) -> None:
        self.limit_bytes = random_.choice((500, 900, 1_500, 5_000))
        self.cached_bytes = 0
        growth_tokens = random_.choice((2, 8, 1024))
        self.memory = Memory(self.COST, self.limit_bytes, 4096, lambda: self.cached_bytes, self.release, growth_tokens)

    def release(self, size_bytes: int) -> None:
        self.cached_bytes = max(0, self.cached_bytes - size_bytes)

    def never_fits(self, job: Job) -> bool:
        return self.COST.of(len(job.prompt.ids) + job.limits.max_tokens) > self.limit_bytes
