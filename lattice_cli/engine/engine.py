"""The heartbeat: jobs in, events out. One thread, no locks, no input or output.

A fault in the backend voids the whole batch (it would go on with wrong tokens after one), so the
batch is rebuilt from prompt and emitted ids: the row at fault fails, the others go on with exactly the
tokens they would have had. A fault nobody owns is found by trying the rows one by one.

Thread: worker
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable

from lattice_cli.engine.backend import Backend, Emitted, Progress
from lattice_cli.engine.row import Choices, Row
from lattice_cli.engine.scheduler import Scheduler
from lattice_cli.engine.scoring import Scoring
from lattice_cli.errors import EngineFault, EngineUnavailable, LatticeError
from lattice_cli.events import Event, Failed
from lattice_cli.job import Job, Limits, Prompt, Sampling, ScoreJob
from lattice_cli.model.card import ModelCard
from lattice_cli.settings import EngineSettings

log = logging.getLogger("lattice.engine")

CANARY_STEPS = 8  # a generator gives a one-token prompt its first token at its second or third step


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
    ) -> None:
        self._card = card
        self._backend = backend
        self._clock = clock
        self._scheduler = Scheduler(settings.max_rows)
        self._scoring = Scoring(backend, card.tokenizer)
        self._outbox: list[Event] = []
        self._handled: Row | None = None  # whose token is being turned into text
        self._suspects: deque[Row] = deque()  # hold a slot, wait for a trial alone
        self._tried: Row | None = None  # alone in the backend
        self._tokens_before_trial = 0
        self._cleared: list[Row] = []

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits and nothing is unsaid."""
        return len(self._scheduler) == 0 and len(self._scoring) == 0 and not self._outbox

    def ready_in_s(self) -> float | None:
        """Seconds until `step` has work; None when only a new message can bring some."""
        if self._outbox or self._suspects or self._scheduler.can_admit() or len(self._scoring):
            return 0.0
        return self._backend.ready_in_s()

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
            except LatticeError as error:
                self._outbox.append(Failed(job.id, error))
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
        row = self._scheduler.remove(job_id)
        if row is None:
            return self._scoring.cancel(job_id)
        events = row.finish("cancelled", self._clock())
        self._forget(row)
        return events

    def step(self) -> list[Event]:
        """One heartbeat: admit, or else advance and turn tokens into events.

        A row's `Started` is said before its first chunk is read: a door may send headers meanwhile.
        """
        self._admit()
        if self._outbox:
            return self._drain()
        for outcome in self._backend.advance():
            self._take(outcome)
        for row in [row for row in self._scheduler.running.values() if row.fault is not None]:
            self._fail(row)
        self._end_trial()
        self._outbox.extend(self._scoring.advance())
        return self._drain()

    def reset(self, fault: Exception) -> list[Event]:
        """After `step` raised `fault`: fail the rows it belongs to and start the others again."""
        if self._scoring.working:
            log.error("a prompt could not be scored: %s", fault, exc_info=fault)
            self._outbox.extend(self._scoring.fail(EngineFault("the prompt could not be scored")))
            return self._drain()
        self._backend.reset()
        in_backend = [row for row in self._scheduler.running.values() if row not in self._suspects]
        if self._tried is not None:
            in_backend = [self._tried]
        culprits = [row for row in in_backend if row.fault is not None or row is self._handled]
        if not culprits and len(in_backend) == 1:
            culprits = in_backend
        self._handled = self._tried = None
        for row in culprits:
            log.error("job %s failed: %s", row.job.id, fault, exc_info=fault)
            row.fault = row.fault or EngineFault("generation failed")
            self._fail(row)
        others = [row for row in in_backend if row not in culprits]
        if culprits:
            self._cleared.extend(others)
        else:
            log.error("a fault that no row owns, trying %d rows one by one: %s", len(others), fault, exc_info=fault)
            self._suspects.extend(others)
        return self._drain()

    def abort(self, reason: str) -> list[Event]:
        """Fail everything that runs or waits, with `EngineUnavailable`."""
        rows = [*self._scheduler.running.values(), *self._scheduler.waiting]
        events = [*self._drain(), *self._scoring.abort(EngineUnavailable(reason))]
        for row in rows:
            self._scheduler.remove(row.job.id)
            self._forget(row)
            events.extend(row.fail(EngineUnavailable(reason)))
        return events

    def alive(self) -> bool:
        """Whether the backend still makes tokens: one short row, alone, on a fresh state.

        It tells an engine that is broken from requests that are. Called after `reset`; rows that are in the backend
        nevertheless (a prompt that could not be scored takes none out) start over. May raise what the backend raises.
        """
        self._backend.reset()
        if self._tried is not None:
            self._suspects.appendleft(self._tried)
            self._tried = None
        held = [*self._suspects, *self._cleared]
        self._cleared.extend(row for row in self._scheduler.running.values() if row not in held)
        probe = Row(
            Job("canary", Prompt(ids=(0,), text=""), Sampling(temperature=0.0), Limits(max_tokens=1)), self._card
        )
        try:
            self._backend.insert(probe)
            for _ in range(CANARY_STEPS):
                if any(isinstance(outcome, Emitted) for outcome in self._backend.advance()):
                    return True
            return False
        finally:
            self._backend.reset()

    def close(self) -> None:
        """Let go of the backend; no other call follows."""
        self._backend.close()

    def _admit(self) -> None:
        if self._suspects or self._tried:
            self._begin_trial()
            return
        # Rows that go on after a fault first: they hold slots already.
        while self._cleared:
            self._backend.insert(self._cleared[0])
            self._cleared.pop(0)
        for row in self._scheduler.admit():
            self._outbox.extend(row.start(self._clock()))
            self._backend.insert(row)

    def _begin_trial(self) -> None:
        if self._tried is None:
            self._tried = self._suspects.popleft()
            self._tokens_before_trial = len(self._tried.emitted)
            self._backend.insert(self._tried)

    def _end_trial(self) -> None:
        row = self._tried
        if row is None:
            return
        if row.ended:
            self._tried = None
        elif len(row.emitted) > self._tokens_before_trial:
            self._backend.remove([row.job.id])
            self._cleared.append(row)
            self._tried = None

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
            self._backend.remove([row.job.id])

    def _fail(self, row: Row) -> None:
        self._scheduler.remove(row.job.id)
        self._forget(row)
        self._outbox.extend(row.fail(row.fault or EngineFault("generation failed")))

    def _forget(self, row: Row) -> None:
        self._backend.remove([row.job.id])
        if row in self._suspects:
            self._suspects.remove(row)
        if row in self._cleared:
            self._cleared.remove(row)
        if row is self._tried:
            self._tried = None

    def _drain(self) -> list[Event]:
        events, self._outbox = self._outbox, []
        return events
