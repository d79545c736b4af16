"""What a reader must take, and what becomes of one that does not.

Thread: any
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from lattice_cli.engine.desk import Desk
from lattice_cli.engine.engine import Engine
from lattice_cli.engine.open import OpenEngine
from lattice_cli.engine.ticket import EVENT_BYTES, Submit, Ticket, weight_bytes
from lattice_cli.engine.worker import EngineWorker
from lattice_cli.errors import SlowReader
from lattice_cli.events import Event, Failed, Finished, Piece, Started, TokenScore
from lattice_cli.job import Channel
from lattice_cli.settings import EngineSettings
from tests.engine.fake import CountingBackend, counted, job, text_of
from tests.engine.letters import LETTERS, LetterTokenizer

pytestmark = pytest.mark.pure

LIMIT_BYTES = 20 * EVENT_BYTES


def desk_of(backend: CountingBackend) -> Desk:
    return Desk(Engine(LETTERS, backend, EngineSettings()))


class LongTokens(LetterTokenizer):
    def token_bytes(self, token_id: int) -> bytes:
        return 5000 * super().token_bytes(token_id)


def read(ticket: Ticket) -> list[Event]:
    events: list[Event] = []
    while (event := ticket.next(0.0)) is not None:
        events.append(event)
    return events


def test_a_reader_that_takes_nothing_is_cancelled_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    """And its neighbour loses nothing by it; the slot is free."""
    backend = CountingBackend()
    desk = desk_of(backend)
    slow = Ticket([job("slow", max_tokens=1000)], lambda message: None, LIMIT_BYTES)
    other = Ticket([job("other", max_tokens=100)], lambda message: None)
    desk.take(Submit(slow))
    desk.take(Submit(other))
    with caplog.at_level(logging.WARNING, "lattice.engine"):
        for _ in range(200):
            desk.turn()
    assert "jobs slow are cancelled: the reply was not read: 5 KiB of it were waiting" in caplog.text
    (*_, end) = events = read(slow)
    assert isinstance(end, Failed)
    assert isinstance(end.error, SlowReader)
    assert counted(3, 1000).startswith(text_of(events, "slow"))
    assert len(events) <= LIMIT_BYTES / EVENT_BYTES + 2
    assert text_of(read(other), "other") == counted(3, 100)
    assert not backend.rows
    assert slow.done


def test_a_reader_that_catches_up_in_time_loses_nothing() -> None:
    desk = desk_of(CountingBackend())
    ticket = Ticket([job("a", max_tokens=300)], lambda message: None, LIMIT_BYTES)
    desk.take(Submit(ticket))
    events: list[Event] = []
    for turn in range(400):
        desk.turn()
        if turn % 15 == 0:
            events += read(ticket)
    events += read(ticket)
    assert text_of(events, "a") == counted(3, 300)
    assert isinstance(events[-1], Finished)


def test_all_jobs_of_a_slow_reader_end() -> None:
    desk = desk_of(CountingBackend())
    ticket = Ticket([job(name, max_tokens=1000) for name in "ab"], lambda message: None, LIMIT_BYTES)
    desk.take(Submit(ticket))
    for _ in range(100):
        desk.turn()
    assert [type(event) for event in read(ticket) if isinstance(event, Finished | Failed)] == [Failed, Failed]


def test_an_end_comes_through_however_much_lies_before_it() -> None:
    assert weight_bytes(Failed("a", SlowReader("x"))) == 0
    assert weight_bytes(Started("a", 1)) == EVENT_BYTES
    score = TokenScore(1, b"a", 0.0, ((b"b", 0.0),) * 20)
    assert weight_bytes(Piece("a", Channel.ANSWER, "text", (score,))) > 10 * EVENT_BYTES


def test_a_thread_that_does_not_read_costs_the_worker_nothing() -> None:
    """Report 74 from the other side: the client is there, and takes nothing. Long tokens are sooner too many."""
    settings, card = EngineSettings(max_rows=1), replace(LETTERS, tokenizer=LongTokens())
    worker = EngineWorker(lambda: OpenEngine(card, Engine(card, CountingBackend(), settings)), settings)
    worker.start()
    worker.wait_ready(60.0)
    held = worker.submit([job("held", max_tokens=10_000_000)])
    over = threading.Event()
    worker.watch = lambda event: over.set() if isinstance(event, Failed) else None
    assert over.wait(60.0)
    answered = worker.submit([job("next")])
    events = []
    while not answered.done:
        events.append(answered.next(5.0))
    assert isinstance(events[-1], Finished)
    (*_, end) = read(held)
    assert isinstance(end, Failed) and isinstance(end.error, SlowReader)
    assert worker.stop()
