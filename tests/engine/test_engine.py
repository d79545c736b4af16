"""The heartbeat: admission, cancellation, and faults that cost nobody else a token.

Thread: any
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from lattice_cli.engine.backend import Emitted, PassFault, Progress
from lattice_cli.engine.desk import Desk
from lattice_cli.engine.engine import Engine
from lattice_cli.engine.row import Row
from lattice_cli.engine.ticket import Submit, Ticket
from lattice_cli.events import Event, Failed, Finished, Piece, Prefilled, Started
from lattice_cli.settings import EngineSettings
from tests.engine.fake import Clock, CountingBackend, counted, job, text_of
from tests.engine.letters import LETTERS, LetterTokenizer

pytestmark = pytest.mark.pure


def engine_of(backend: CountingBackend, max_rows: int = 8, prefill_chunk: int = 512) -> Engine:
    backend.prefill_chunk = prefill_chunk
    return Engine(LETTERS, backend, EngineSettings(max_rows=max_rows), clock=Clock())


def run(engine: Engine, steps: int = 1000) -> list[Event]:
    events: list[Event] = []
    for _ in range(steps):
        if engine.idle:
            return events
        try:
            events += engine.step()
        except RuntimeError as fault:
            events += engine.reset(fault)
    raise AssertionError("the engine did not come to an end")


def ends(events: list[Event]) -> dict[str, str]:
    return {
        event.job_id: event.reason if isinstance(event, Finished) else event.error.message
        for event in events
        if isinstance(event, Finished | Failed)
    }


def test_a_job_says_started_prefilled_pieces_finished() -> None:
    engine = engine_of(CountingBackend(), prefill_chunk=2)
    engine.add(job("a", prompt_tokens=3, max_tokens=2))
    events = run(engine)
    assert events[:3] == [Started("a", 3), Prefilled("a", 2, 3), Prefilled("a", 3, 3)]
    assert text_of(events, "a") == counted(3, 2)
    assert isinstance(events[-1], Finished)
    assert engine.ready_in_s() is None


def test_started_is_said_before_the_first_chunk_is_read() -> None:
    """A chunk may take seconds on a CPU; headers must not wait for it."""
    backend = CountingBackend()
    engine = engine_of(backend)
    engine.add(job("a"))
    assert engine.step() == [Started("a", 3)]
    assert backend.read == {"a": 0}
    assert engine.step() == [Prefilled("a", 3, 3)]


def test_more_jobs_than_rows_wait_and_are_served_in_order() -> None:
    backend = CountingBackend()
    engine = engine_of(backend, max_rows=2)
    for name in "abcde":
        engine.add(job(name))
    peak = 0
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
        peak = max(peak, len(backend.rows))
    assert peak == 2
    assert [event.job_id for event in events if isinstance(event, Started)] == list("abcde")
    assert set(ends(events).values()) == {"length"}


def test_a_short_newcomer_is_in_the_batch_beside_a_long_prompt_at_once() -> None:
    """mlx-lm's generator padded the short row to the long one's chunks; ours reads the shortest rest first."""
    backend = CountingBackend()
    engine = engine_of(backend, prefill_chunk=10)
    engine.add(job("long", prompt_tokens=40))
    engine.add(job("short", prompt_tokens=4))
    engine.step()
    assert list(backend.rows) == ["long", "short"]


def test_cancelling_a_waiting_job_costs_no_work_and_says_one_ending() -> None:
    backend = CountingBackend()
    engine = engine_of(backend, max_rows=1)
    engine.add(job("a"))
    engine.add(job("b"))
    engine.step()
    (end,) = engine.cancel("b")
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.completion_tokens) == ("cancelled", 0)
    run(engine)
    assert backend.inserted == ["a"]
    assert engine.cancel("b") == []


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_cancelling_in_prefill_or_decode_frees_the_slot_at_once(steps: int) -> None:
    backend = CountingBackend()
    engine = engine_of(backend, max_rows=1, prefill_chunk=1)
    engine.add(job("a", prompt_tokens=3, max_tokens=50))
    engine.add(job("b"))
    for _ in range(steps):
        engine.step()
    assert [type(event) for event in engine.cancel("a")] == [Finished]
    assert "a" not in backend.rows
    assert ends(run(engine)) == {"b": "length"}


def poisoned(name: str, at: int) -> Callable[[list[Row]], Exception | None]:
    """A fault whenever that row is in the batch with at least `at` tokens out."""

    def faults(rows: list[Row]) -> Exception | None:
        hit = any(row.job.id == name and len(row.emitted) >= at for row in rows)
        return RuntimeError("poison") if hit else None

    return faults


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_fault_nobody_owns_fails_only_the_row_that_faults_alone(at: int) -> None:
    """A batch generator goes on with wrong tokens after a fault, so the others must be started again."""
    engine = engine_of(CountingBackend(poisoned("bad", at)))
    for name, tokens in (("a", 3), ("bad", 4), ("c", 5)):
        engine.add(job(name, prompt_tokens=tokens, max_tokens=9))
    events = run(engine)
    assert ends(events) == {"a": "length", "bad": "generation failed", "c": "length"}
    assert text_of(events, "a") == counted(3, 9)
    assert text_of(events, "c") == counted(5, 9)
    assert [event.job_id for event in events if isinstance(event, Started)] == ["a", "bad", "c"]


def test_two_poisoned_rows_fail_and_the_third_goes_on() -> None:
    one, two = poisoned("x", 2), poisoned("y", 2)
    engine = engine_of(CountingBackend(lambda rows: one(rows) or two(rows)))
    for name in ("x", "a", "y"):
        engine.add(job(name))
    events = run(engine)
    assert ends(events) == {"a": "length", "x": "generation failed", "y": "generation failed"}
    assert text_of(events, "a") == counted(3, 5)


def test_a_row_that_marked_itself_fails_alone_without_a_reset() -> None:
    class Marking(CountingBackend):
        def advance(self):  # type: ignore[no-untyped-def]
            from lattice_cli.errors import EngineFault

            for row in self.rows.values():
                if row.job.id == "bad" and len(row.emitted) == 2:
                    row.fault = EngineFault("generation failed")
            return super().advance()

    backend = Marking()
    engine = engine_of(backend)
    engine.add(job("a"))
    engine.add(job("bad"))
    events = run(engine)
    assert ends(events) == {"a": "length", "bad": "generation failed"}
    assert backend.inserted == ["a", "bad"]


def test_cancelling_a_row_on_trial_lets_the_trials_go_on() -> None:
    engine = engine_of(CountingBackend(poisoned("bad", 1)))
    for name in ("a", "bad", "c"):
        engine.add(job(name))
    events: list[Event] = []
    for _ in range(50):
        try:
            events += engine.step()
        except RuntimeError as fault:
            events += engine.reset(fault)
            break
    events += engine.cancel("a")
    events += run(engine)
    assert ends(events) == {"a": "cancelled", "bad": "generation failed", "c": "length"}
    assert text_of(events, "c") == counted(3, 5)


class Late(CountingBackend):
    """The pass that ran when these rows were there has failed; it shows with the next `advance`."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: PassFault | None = None

    def fail(self, *job_ids: str) -> None:
        self.fault = PassFault(RuntimeError("late"), frozenset(job_ids))

    def advance(self) -> list[Progress | Emitted]:
        fault, self.fault = self.fault, None
        if fault is not None:
            self.spoilt = True
            raise fault
        return super().advance()


@pytest.mark.parametrize(
    ("left", "stay", "blamed"),
    [
        ("ab", "", ""),  # all of the pass have left: it is nobody's
        ("a", "b", ""),  # it may have been the one that left
        ("", "ab", ""),
        ("", "a", "a"),  # it was alone in the pass
    ],
)
@pytest.mark.parametrize("newcomers", ["n", "nm"])
def test_a_late_fault_is_not_of_those_who_came_after_it(left: str, stay: str, blamed: str, newcomers: str) -> None:
    """A pass that failed as its last row left was the fault of the next row to come, and failed its request."""
    backend = Late()
    engine = engine_of(backend)
    for name in left + stay:
        engine.add(job(name, max_tokens=9))
    events = [event for _ in range(3) for event in engine.step()]
    backend.fail(*left, *stay)
    for name in left:
        events += engine.cancel(name)
    for name in newcomers:
        engine.add(job(name, prompt_tokens=4))
    events += run(engine)
    told = dict.fromkeys(stay + newcomers, "length") | dict.fromkeys(left, "cancelled")
    assert ends(events) == told | dict.fromkeys(blamed, "generation failed")
    assert {name: text_of(events, name) for name in newcomers} == {name: counted(4, 5) for name in newcomers}
    tried = [name for name in backend.inserted if name in newcomers]
    assert tried == [*newcomers, *newcomers]  # they begin again, and are not tried alone


@pytest.mark.parametrize("suspects", [1, 2])
def test_a_late_fault_of_rows_that_left_ends_no_trial(suspects: int) -> None:
    backend = Late()
    engine = engine_of(backend)
    for name in "ab"[:suspects]:
        engine.add(job(name))
    engine.step()
    events = engine.reset(RuntimeError("of both")) if suspects == 2 else []
    backend.fail("gone")
    events += run(engine)
    assert ends(events) == dict.fromkeys("ab"[:suspects], "length")


def test_abort_answers_everyone() -> None:
    engine = engine_of(CountingBackend(), max_rows=1)
    engine.add(job("a"))
    engine.add(job("b"))
    engine.step()
    assert ends(engine.abort("the server is shutting down")) == {
        "a": "the server is shutting down",
        "b": "the server is shutting down",
    }
    assert engine.idle


def test_a_canary_tells_a_live_backend_from_a_dead_one() -> None:
    assert engine_of(CountingBackend()).alive()
    dead = engine_of(CountingBackend(lambda rows: RuntimeError("dead")))
    with pytest.raises(RuntimeError, match="dead"):
        dead.alive()


@pytest.mark.parametrize("seed", range(30))
def test_any_schedule_keeps_the_grammar_of_events(seed: int) -> None:
    """Random arrivals, cancels and faults: (Started Prefilled* Piece*)? (Finished | Failed) for each job."""
    random_ = random.Random(seed)
    bad = {name for name in "abcdefgh" if random_.random() < 0.3}
    backend = CountingBackend(
        lambda rows: RuntimeError("x") if any(row.job.id in bad and len(row.emitted) > 1 for row in rows) else None
    )
    engine = engine_of(backend, max_rows=random_.randint(1, 4), prefill_chunk=random_.randint(1, 8))
    waiting, events, cancelled = list("abcdefgh"), list[Event](), set[str]()
    sizes = {name: (random_.randint(1, 12), random_.randint(1, 9)) for name in waiting}
    for _ in range(2000):
        if waiting and random_.random() < 0.3:
            name = waiting.pop(0)
            engine.add(job(name, *sizes[name]))
        if random_.random() < 0.05:
            name = random_.choice("abcdefgh")
            ended = engine.cancel(name)
            cancelled |= {name} if ended else set()
            events += ended
        try:
            events += engine.step()
        except RuntimeError as fault:
            events += engine.reset(fault)
        if not waiting and engine.idle:
            break
    for name in "abcdefgh":
        kinds = [type(event) for event in events if event.job_id == name]
        assert kinds.count(Finished) + kinds.count(Failed) == 1
        assert kinds[-1] in (Finished, Failed)
        order = [Started, Prefilled, Piece, Finished, Failed]
        assert [order.index(kind) for kind in kinds] == sorted(order.index(kind) for kind in kinds)
        text = text_of(events, name)
        assert text == counted(sizes[name][0], len(text))
        if name not in cancelled and name not in bad:
            assert len(text) == sizes[name][1]


class PanicException(BaseException):
    """As pyo3 raises one, when Rust code panics: no Exception."""


class Touchy(LetterTokenizer):
    """A tokenizer that cannot spell one token."""

    def __init__(self, token_id: int, fault: BaseException) -> None:
        self._token_id, self._fault = token_id, fault

    def token_bytes(self, token_id: int) -> bytes:
        if token_id == self._token_id:
            raise self._fault
        return super().token_bytes(token_id)


@pytest.mark.parametrize("fault", [ValueError("no such token"), PanicException("index out of range")])
def test_a_tokenizer_that_raises_costs_its_row_and_nobody_else_a_token(fault: BaseException) -> None:
    """At the third token of one reply; and where a job cannot even begin."""
    card = replace(LETTERS, tokenizer=Touchy(64 + 20 + 2, fault))
    desk = Desk(Engine(card, CountingBackend(), EngineSettings(), clock=Clock()))
    jobs = [job("a"), job("bad", prompt_tokens=20), job("c", prompt_tokens=5)]
    odd = replace(job("odd"), speech=object())  # type: ignore[arg-type]
    tickets = [Ticket([each], lambda message: None) for each in (*jobs, odd)]
    for ticket in tickets:
        desk.take(Submit(ticket))
    for _ in range(50):
        desk.turn()
    events: list[Event] = []
    for ticket in tickets:
        while (event := ticket.next(0.0)) is not None:
            events.append(event)
    assert ends(events) == {"a": "length", "bad": "generation failed", "c": "length", "odd": "generation failed"}
    assert text_of(events, "a") == counted(3, 5)
    assert text_of(events, "bad") == counted(20, 2)
    assert desk.ready_in_s() is None


def test_an_end_by_the_clock_that_raises_is_an_end_all_the_same() -> None:
    """What is held back of a reply is spelled when its time is over, by a tokenizer that may raise."""

    class Rest(LetterTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            return "ä".encode()[:1]  # a letter that is never whole

    clock = Clock()
    engine = Engine(replace(LETTERS, tokenizer=Rest()), CountingBackend(), EngineSettings(), clock=clock)
    late = job("late", max_tokens=1000)
    engine.add(replace(late, limits=replace(late.limits, deadline_s=1.0)), job("other", max_tokens=9))
    for _ in range(5):
        engine.step()
    engine._scheduler.running["late"]._reply.flush = unspeakable  # type: ignore[method-assign]
    clock.now_s = 2.0
    assert ends(run(engine)) == {"late": "generation failed", "other": "length"}


def unspeakable() -> list[Event]:
    raise RuntimeError("no such letter")


def test_jobs_of_one_prompt_object_are_choices_of_it_and_equal_prompts_are_not() -> None:
    backend = CountingBackend()
    engine = engine_of(backend)
    first, second = job("a"), job("b")
    engine.add(first, replace(second, prompt=first.prompt), job("c"))
    engine.step()
    a, b, c = (backend.rows[name] for name in "abc")
    assert a.choices is b.choices is not None
    assert c.choices is None
    assert a.choices.waiting == {"a", "b"}
    engine.cancel("a")
    assert a.choices.waiting == {"b"}
    run(engine)
    assert a.choices.waiting == set()
