"""One whole schedule of an engine under load, on one thread and a clock of its own, made from a seed and checked.

Longer than most files because all that must hold is read together (what it is played with is in played.py).

What runs is the engine's own: waiting room, tickets, desk, scheduler, rows, trials, the scripted model. What is played:
the clients (who come, read slowly or not at all, cancel, have deadlines), the clock, faults of the backend, and an end
at any point. `python -m tests.engine.simulation SEED` replays one and prints it.

Thread: any
"""

from __future__ import annotations

import logging
import random
import re
import sys
from dataclasses import replace
from typing import Any

from lattice_cli.engine.desk import Desk
from lattice_cli.engine.engine import Engine
from lattice_cli.engine.scripted import ScriptedBackend
from lattice_cli.engine.ticket import Cancel, Message, Submit, Ticket
from lattice_cli.engine.waiting_room import WaitingRoom
from lattice_cli.errors import EngineFault, EngineUnavailable, LatticeError, Overloaded, PromptTooLong, SlowReader
from lattice_cli.events import CallPart, Event, Failed, Finished, Piece, Prefilled, Scored, Started
from lattice_cli.job import Job, ScoreJob
from lattice_cli.settings import EngineSettings
from tests.engine.fake import Clock
from tests.engine.played import ASKED, CARD, SCRIPT, TOKENIZER, Budget, Client, Faults, alone, make_job, told

GRAMMAR = re.compile(r"(SP*T*)?[FX]")
SCORED = re.compile("[CFX]")
LETTERS = {Started: "S", Prefilled: "P", Piece: "T", CallPart: "T", Finished: "F", Failed: "X", Scored: "C"}
MOST_TURNS = 20_000


class Simulation:
    """A schedule. `run` raises AssertionError where something is not as it must be."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        self.random = random_ = random.Random(seed)
        self.trace = trace
        self.clock = Clock()
        self.max_rows = random_.randint(1, 4)
        self.unread_bytes = random_.choice((4_000, 10_000, 1 << 20))
        self.places = self.max_rows + random_.randint(0, 6)
        self.backend = Faults(
            ScriptedBackend(SCRIPT, TOKENIZER, self.clock), random_, random_.choice((0.0, 0.0, 0.003, 0.03))
        )
        self.budget = Budget(random_) if random_.random() < 0.3 else None
        settings, memory = EngineSettings(max_rows=self.max_rows), self.budget.memory if self.budget else None
        self.engine = Engine(CARD, self.backend, settings, self.clock, memory)
        self.room = WaitingRoom(self.places, self.clock)
        self.desk = Desk(self.engine, self.room.job_ended, self._said, self.clock)
        self.inbox: list[Message] = []
        self.clients: list[Client] = []
        self.grants: list[str] = []  # job ids, in the order in which they got their slots
        self.came: dict[str, tuple[int, int]] = {}  # a request's first job -> grants so far, requests before it
        self.wanted = random_.randint(3, 12)
        self.arrival = random_.choice((0.02, 0.1, 0.5))
        self.stops_at = random_.randint(1, 400) if random_.random() < 0.2 else None
        self.dies_at = random_.randint(1, 400) if random_.random() < 0.05 else None

    # The schedule.

    def run(self) -> None:
        for turn in range(MOST_TURNS):
            if turn == self.stops_at:
                self._end("the server is shutting down")
                return
            self.backend.dead = self.dies_at is not None and turn >= self.dies_at
            self._play()
            if not self._turn():
                return
            if self.wanted == 0 and not len(self.room):
                break
            if turn > 1000:  # whoever hangs is cancelled in the end
                for client in self.clients:
                    client.cancelled = True
                    client.ticket.cancel()
        else:
            raise AssertionError("the engine did not come to an end")
        self._read_all()
        self._check()

    def _turn(self) -> bool:
        """What the worker's thread does between two waits. False: the engine is broken, and all were answered."""
        messages = self.inbox[:]
        self.inbox.clear()  # tickets hold the list
        for message in messages:
            if isinstance(message, Submit):
                self._note_arrival(message.ticket)
            assert isinstance(message, Submit | Cancel)
            self.desk.take(message)
        wait_s = self.desk.ready_in_s()
        if wait_s is None:
            self._check_still()
        if wait_s is None or wait_s > 0:
            self.clock.now_s += min(0.01 if wait_s is None else wait_s, 0.01)
            if wait_s is None or wait_s > 0.01:
                return True
        began_s = self.clock.now_s
        try:
            self.desk.turn()
        except (EngineFault, RuntimeError):
            assert self.backend.dead, "only a dead backend is broken"
            self._end("the engine has failed and must be restarted")
            return False
        self.clock.now_s += self.random.choice((0.0, 0.0005, 0.004))
        self._check_now(began_s)
        return True

    def _play(self) -> None:
        """What the clients do."""
        if self.wanted and self.random.random() < self.arrival:
            self.wanted -= 1
            self._arrive()
        for client in self.clients:
            if self.random.random() < client.reads:
                self._read(client, client.gulp)
            if not client.cancelled and self.random.random() < 0.002:
                client.cancelled = True
                self._say(f"cancel {client.ticket.jobs[0].id}")
                client.ticket.cancel()

    def _arrive(self) -> None:
        number, random_ = len(self.clients) + self.wanted * 100, self.random
        jobs: list[Job | ScoreJob]
        if random_.random() < 0.1:
            ids = tuple(random_.choice((65, 66, 99)) for _ in range(random_.randint(1, 9)))
            jobs = [ScoreJob(f"{number}.score", ids, 1, self._deadline())]
        else:
            asked, stop = random_.choice(ASKED), random_.choice(((), (), ("k", "fore")))
            tokens, deadline_s = random_.choice((1, 3, 30, 60)), self._deadline()
            first = make_job(f"{number}.0", asked, tokens, random_.randint(1, 40), stop, deadline_s)
            jobs = [replace(first, id=f"{number}.{choice}") for choice in range(random_.choice((1, 1, 1, 2, 5)))]
            if random_.random() < 0.05:
                self.backend.poison |= {jobs[0].id}
        ticket = Ticket(jobs, self.inbox.append, self.unread_bytes)
        full = len(self.room) >= self.places
        refusal = self._refusal(ticket)
        assert full == (refusal is not None)
        if refusal is not None:
            assert 1 <= (refusal.retry_after_s or 0) <= 60
            return
        reads = random_.choice((1.0, 1.0, 1.0, 0.1, 0.0))
        self._say(f"arrive {[job.id for job in jobs]} {jobs[0]} reads {reads}")
        self.clients.append(Client(ticket, reads, random_.choice((1, 3, 100))))
        self.inbox.append(Submit(ticket))

    def _refusal(self, ticket: Ticket) -> Overloaded | None:
        try:
            self.room.enter(ticket)
        except Overloaded as refused:
            return refused
        return None

    def _deadline(self) -> float | None:
        return self.clock.now_s + self.random.choice((0.0, 0.01, 0.05, 1.0)) if self.random.random() < 0.3 else None

    def _end(self, reason: str) -> None:
        """The worker's end: at once, whatever runs, waits or lies in the inbox."""
        if reason == "the server is shutting down":
            self.desk.abort(reason)
        unread = [message.ticket for message in self.inbox if isinstance(message, Submit)]
        self.desk.answer(unread, EngineUnavailable(reason))
        self._read_all()
        self._check(ended=reason)

    # What was seen.

    def _said(self, event: Event) -> None:
        self._say(str(event))
        if isinstance(event, Started):
            self.grants.append(event.job_id)
            if event.job_id in self.came:
                since, before = self.came.pop(event.job_id)
                others = len(self.grants) - 1 - since
                # Whoever waits for memory may be passed so often; so may each of those before it.
                most = before if self.budget is None else (before + 1) * (self.max_rows + 1)
                assert others <= most, f"{event.job_id} saw {others} slots go to others, with {before} before it"
        elif isinstance(event, Finished | Failed):
            self.came.pop(event.job_id, None)
            if self.budget is not None:
                self.budget.cached_bytes += 300

    def _note_arrival(self, ticket: Ticket) -> None:
        first = ticket.jobs[0]
        if isinstance(first, Job):
            scheduler = self.engine._scheduler
            waiting = {row.job.id.split(".")[0] for row in scheduler.waiting}
            unsaid = set(scheduler.running) - set(self.grants)  # a fault came between
            self.came[first.id] = (len(self.grants), len(waiting) + len(unsaid))

    def _read(self, client: Client, count: int) -> None:
        for _ in range(count):
            event = client.ticket.next(0.0) if not client.ticket._events.empty() else None
            if event is None:
                return
            client.read.append(event)

    def _read_all(self) -> None:
        for client in self.clients:
            self._read(client, 1 << 30)

    def _say(self, line: str) -> None:
        if self.trace:
            print(f"{self.clock.now_s * 1000:9.1f} ms  {line}")

    # What must be.

    def _check_now(self, began_s: float) -> None:
        running = self.engine._scheduler.running
        assert len(running) <= self.max_rows
        assert self.backend.rows <= set(running)
        if self.budget is not None:
            assert self.budget.memory.used(running.values()) <= self.budget.limit_bytes
        for job_id, ticket in self.desk._tickets.items():
            (job,) = (one for one in ticket.jobs if one.id == job_id)
            deadline_s = job.limits.deadline_s if isinstance(job, Job) else job.deadline_s
            assert deadline_s is None or deadline_s > began_s, f"{job_id} runs beyond its deadline"
        for client in self.clients:  # a step's events may come on top of the bound
            assert client.ticket.unread_bytes <= self.unread_bytes + 8 * self.max_rows * 512

    def _check_still(self) -> None:
        """Nothing to do without a message: everything that runs hangs, and nobody waits beside a free slot."""
        scheduler = self.engine._scheduler
        assert all(row.job.prompt.asked == "hanging" for row in scheduler.running.values()), "a row is forgotten"
        full = len(scheduler.running) == self.max_rows or (self.budget is not None and len(scheduler.running) > 0)
        assert not scheduler.waiting or full, "a slot is forgotten"

    def _check(self, ended: str = "") -> None:
        if self.budget is not None and not ended:
            assert self.budget.memory.used(self.engine._scheduler.running.values()) == 0
        assert len(self.room) == self.room.open_jobs == 0
        assert self.desk._tickets == {}
        if not ended or ended == "the server is shutting down":
            assert self.engine.idle
            assert len(self.engine._scheduler) == 0
            assert not self.backend.rows and not self.backend._backend._playing
            assert not self.engine._trials.waiting and not self.engine._trials.under_way
        for client in self.clients:
            assert client.ticket.done
            for job in client.ticket.jobs:
                events = [event for event in client.read if event.job_id == job.id]
                spelled = "".join(LETTERS[type(event)] for event in events)
                grammar = GRAMMAR if isinstance(job, Job) else SCORED
                assert grammar.fullmatch(spelled), f"{job.id} said {spelled}"
                if isinstance(job, Job):
                    self._check_reply(job, client, events)

    def _check_reply(self, job: Job, client: Client, events: list[Event]) -> None:
        asked = job.prompt.asked
        text, reason = alone(asked, job.limits.max_tokens, len(job.prompt.ids), job.limits.stop)
        said, end = told(events), events[-1]
        assert text.startswith(said), f"{job.id} said {said!r}, and alone {text!r}"
        if isinstance(end, Finished) and end.reason not in ("cancelled", "deadline"):
            assert (said, end.reason) == (text, reason)
        elif isinstance(end, Finished):
            assert end.reason == "deadline" or client.cancelled
        elif isinstance(end, Failed):
            self._check_fault(job, client, end.error)

    def _check_fault(self, job: Job, client: Client, error: LatticeError) -> None:
        if isinstance(error, PromptTooLong):
            assert self.budget is not None
            assert self.budget.never_fits(job)
            return
        raised = isinstance(error, EngineFault)
        allowed: Any = raised or isinstance(error, SlowReader | EngineUnavailable)
        assert allowed, f"{job.id} failed with {error!r}"
        if isinstance(error, SlowReader):
            assert client.reads < 1.0 or client.gulp < 100
        if raised and not self.backend._chance and not self.backend.dead:
            assert job.prompt.asked == "faulty" or job.id in self.backend.poison, f"{job.id} failed for another"


def simulate(seed: int, trace: bool = False) -> None:
    """Run one schedule. Raises: AssertionError with the seed."""
    level = logging.getLogger("lattice.engine").level
    logging.getLogger("lattice.engine").setLevel(logging.CRITICAL)
    try:
        Simulation(seed, trace).run()
    except Exception as error:
        raise AssertionError(f"schedule {seed}: {error} (python -m tests.engine.simulation {seed})") from error
    finally:
        logging.getLogger("lattice.engine").setLevel(level)


if __name__ == "__main__":
    simulate(int(sys.argv[1]), trace=True)
