"""The heartbeat: jobs in, events out. One thread, no locks, no input or output.

A fault in the backend voids the whole batch (it would go on with wrong tokens after one), so the
batch is rebuilt from prompt and emitted ids: the row at fault fails, the others go on with exactly the
tokens they would have had. A fault nobody owns is found by trying the rows one by one.

Longer than most files because rows enter, step, end and come back by one set of hands.

Thread: worker
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from lattice_cli.engine.backend import Backend, Emitted, PassFault, Progress
from lattice_cli.engine.canary import makes_tokens
from lattice_cli.engine.faults import fault_of, out_of_memory
from lattice_cli.engine.memory import Memory
from lattice_cli.engine.row import Choices, Row
from lattice_cli.engine.scheduler import Scheduler, always_fits
from lattice_cli.engine.scoring import Scoring
from lattice_cli.engine.trials import Trials
from lattice_cli.errors import EngineFault, EngineUnavailable, LatticeError, is_panic
from lattice_cli.events import Event, Failed
from lattice_cli.job import Job, ScoreJob
from lattice_cli.model.card import ModelCard
from lattice_cli.settings import EngineSettings

log = logging.getLogger("lattice.engine")


class Engine:
    """Rows, their slots and their events.

    `step` may raise whatever the backend raises; the caller then calls `reset` with it, and no event is
    lost: those made before the fault come out of `reset`.
    """

    def __init__(
        self,
        card: ModelCard,
        backend: Backend,
        settings: EngineSettings,
        clock: Callable[[], float] = time.monotonic,
        memory: Memory | None = None,
    ) -> None:
        self._card = card
        self._backend = backend
        self._clock = clock
        self._memory = memory
        self._scheduler = Scheduler(settings.max_rows, always_fits if memory is None else memory.fits)
        self._scoring = Scoring(backend, card.tokenizer)
        self._outbox: list[Event] = []
        self._handled: Row | None = None  # whose token is being turned into text
        self._trials = Trials(self._insert, self._remove)

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits and nothing is unsaid."""
        return len(self._scheduler) == 0 and len(self._scoring) == 0 and not self._outbox

    @property
    def rows(self) -> int:
        """How many have a slot."""
        return len(self._scheduler.running)

    def ready_in_s(self) -> float | None:
        """Seconds until `step` has work; None when only a new message can bring some."""
        if self._outbox or self._trials.waiting or len(self._scoring):
            return 0.0
        if not self._trials.under_way and self._scheduler.can_admit():
            return 0.0
        deadlines = [row.job.limits.deadline_s for row in self._rows()]
        ends = [max(0.0, deadline_s - self._clock()) for deadline_s in deadlines if deadline_s is not None]
        return min((wait for wait in (self._backend.ready_in_s(), *ends) if wait is not None), default=None)

    def add(self, *jobs: Job) -> None:
        """Queue the jobs of one request. Their first events come from a later `step`. Those of one Prompt object have
        it read once.
        """
        prompts = Counter(id(job.prompt) for job in jobs)
        shared = {key: Choices() for key, count in prompts.items() if count > 1}
        rows: list[Row] = []
        for job in jobs:
            choices = shared.get(id(job.prompt))
            try:
                row = Row(job, self._card, choices)
                if self._memory is not None:
                    self._memory.check(row)
            except LatticeError as error:
                self._outbox.append(Failed(job.id, error))
                continue
            except BaseException as fault:
                if not isinstance(fault, Exception) and not is_panic(fault):
                    raise
                log.error("job %s cannot begin: %s", job.id, fault, exc_info=fault)
                self._outbox.append(Failed(job.id, fault_of(fault)))
                continue
            if choices is not None:
                choices.waiting.add(job.id)
            rows.append(row)
        self._scheduler.add(*rows)

    def score(self, job: ScoreJob) -> None:
        """Queue a prompt to be scored, a chunk a step."""
        self._scoring.add(job)

    def cancel(self, job_id: str) -> list[Event]:
        """End a job wherever it is, at once; the others are not disturbed. Empty for an unknown id."""
        row = self._leave(job_id)
        return self._scoring.cancel(job_id) if row is None else row.finish("cancelled", self._clock())

    def drop(self, job_id: str, error: LatticeError) -> list[Event]:
        """End a job at once with an error that is not the engine's. Empty for an unknown id."""
        row = self._leave(job_id)
        return [] if row is None else row.fail(error)

    def step(self) -> list[Event]:
        """One heartbeat: end what is late, admit, or else advance and turn tokens into events.

        A row's `Started` is said before its first chunk is read: a door may send headers meanwhile.
        """
        self._expire()
        self._admit()
        if self._outbox:
            return self._drain()
        for outcome in self._backend.advance():
            self._take(outcome)
        for row in [row for row in self._scheduler.running.values() if row.fault is not None]:
            self._fail(row)
        self._trials.end(idle=self._backend.ready_in_s() is None)
        if self._memory is not None:
            self._make_room(self._memory)
        self._outbox.extend(self._scoring.advance())
        return self._drain()

    def reset(self, fault: BaseException) -> list[Event]:
        """After `step` raised `fault`: fail the rows it belongs to and start the others again."""
        if self._scoring.working:
            log.error("a prompt could not be scored: %s", fault, exc_info=fault)
            self._outbox.extend(self._scoring.fail(fault_of(fault, "the prompt could not be scored")))
            return self._drain()
        self._backend.reset()
        in_backend = self._trials.in_backend(self._scheduler.running.values())
        in_pass = {row.job.id for row in in_backend}
        if isinstance(fault, PassFault):
            in_pass, fault = set(fault.job_ids), fault.cause
        if self._memory is not None and out_of_memory(fault):
            self._memory.give_way()
        suspects = [row for row in in_backend if row.job.id in in_pass]
        culprits = [row for row in in_backend if row.fault is not None or row is self._handled]
        if self._handled is not None and self._handled not in in_backend:  # it waited
            culprits.append(self._handled)
        if not culprits and len(in_pass) == 1:
            culprits = suspects
        self._handled = None
        if culprits:
            self._trials.clear(row for row in in_backend if row not in culprits)
        elif suspects:
            log.error("a fault that no row owns, trying %d rows one by one: %s", len(suspects), fault, exc_info=fault)
            self._trials.clear(row for row in in_backend if row not in suspects)
            self._trials.suspect(suspects)
        else:
            log.error("a fault of rows that have left: %s", fault, exc_info=fault)
            self._trials.pause(self._scheduler.running.values())
        for row in culprits:
            log.error("job %s failed: %s", row.job.id, fault, exc_info=fault)
            row.fault = row.fault or fault_of(fault)
            self._fail(row)
        return self._drain()

    def abort(self, reason: str) -> list[Event]:
        """Fail everything that runs or waits, with `EngineUnavailable`."""
        events = [*self._drain(), *self._scoring.abort(EngineUnavailable(reason))]
        for row in self._rows():
            self._leave(row.job.id)
            events.extend(row.fail(EngineUnavailable(reason)))
        return events

    def alive(self) -> bool:
        """Whether the backend still makes tokens: one short row, alone, on a fresh state.

        Called after `reset`; rows that are in the backend nevertheless (a prompt that could not be scored takes none
        out) start over. May raise what the backend raises.
        """
        self._backend.reset()
        self._trials.pause(self._scheduler.running.values())
        return makes_tokens(self._backend, self._card)

    def close(self) -> None:
        """Let go of the backend; no other call follows."""
        self._backend.close()

    def _rows(self) -> list[Row]:
        return [*self._scheduler.running.values(), *self._scheduler.waiting]

    def _expire(self) -> None:
        now_s = self._clock()
        for row in self._rows():
            if row.job.limits.deadline_s is not None and now_s >= row.job.limits.deadline_s:
                self._handled = row
                events = row.finish("deadline", now_s)
                self._handled = None
                self._leave(row.job.id)
                self._outbox.extend(events)
        self._outbox.extend(self._scoring.expire(now_s))

    def _admit(self) -> None:
        self._trials.begin()  # rows that go on after a fault first: they hold slots already
        if self._trials.under_way:
            return
        for row in self._scheduler.admit():
            self._insert(row)

    def _make_room(self, memory: Memory) -> None:
        """Rows have grown. While there is no memory for all of them the newest waits again; later it goes on from what
        it said. The oldest is never asked, so replies come to an end whatever they grow to.
        """
        running = self._scheduler.running
        while len(running) > 1 and not memory.holds(running.values()):
            row = self._scheduler.put_back()
            self._remove(row)
            self._trials.forget(row)
            log.info("job %s waits after %d tokens: others need its memory", row.job.id, len(row.emitted))
        memory.settle(running.values())

    def _insert(self, row: Row) -> None:
        self._handled = row
        self._backend.insert(row)
        self._handled = None
        self._outbox.extend(row.start(self._clock()))  # it knows by now what of its prompt is cached

    def _remove(self, row: Row) -> None:
        self._backend.remove([row.job.id])

    def _take(self, outcome: Progress | Emitted) -> None:
        row = self._scheduler.running.get(outcome.job_id)
        if row is None or row.ended:
            return
        self._handled = row
        if isinstance(outcome, Progress):
            self._outbox.extend(row.prefilled(outcome.done, outcome.total, self._clock()))
        else:
            self._outbox.extend(row.accept(outcome.token_id, self._clock(), outcome.score))
        self._handled = None
        if row.ended:
            self._scheduler.remove(row.job.id)
            self._remove(row)

    def _fail(self, row: Row) -> None:
        self._leave(row.job.id)
        self._outbox.extend(row.fail(row.fault or EngineFault("generation failed")))

    def _leave(self, job_id: str) -> Row | None:
        """Take a row out of everything; None when it is not here."""
        row = self._scheduler.remove(job_id)
        if row is not None:
            self._remove(row)
            self._trials.forget(row)
        return row

    def _drain(self) -> list[Event]:
        events, self._outbox = self._outbox, []
        return events
