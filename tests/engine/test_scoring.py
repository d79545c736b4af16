"""Prompts scored between steps: in line, cancelled, poisoned. Their numbers are in test_prompt_scores.py.

Thread: any
"""

from __future__ import annotations

from typing import Any

import pytest

from lattice_cli.engine.engine import Engine
from lattice_cli.engine.open import OpenEngine
from lattice_cli.engine.worker import EngineWorker
from lattice_cli.errors import EngineFault, EngineUnavailable
from lattice_cli.events import Event, Failed, Finished, Scored, TokenScore
from lattice_cli.job import ScoreJob
from lattice_cli.settings import EngineSettings
from tests.engine.fake import Clock, CountingBackend, counted, job, text_of
from tests.engine.letters import LETTERS

pytestmark = pytest.mark.pure


def engine(backend: Any = None) -> Engine:
    return Engine(LETTERS, backend or CountingBackend(), EngineSettings(), Clock())


def run(runs: Engine) -> list[Event]:
    events: list[Event] = []
    while not runs.idle:
        try:
            events += runs.step()
        except RuntimeError as fault:
            events += runs.reset(fault)
    return events


@pytest.mark.parametrize(("ids", "scores"), [((), ()), ((65,), (b"A",))])
def test_a_prompt_of_nothing_or_one_token_has_nothing_to_be_likely_after(
    ids: tuple[int, ...], scores: tuple[bytes, ...]
) -> None:
    runs = engine()
    runs.score(ScoreJob("s", ids))
    assert run(runs) == [Scored("s", scores)]


def test_prompts_are_scored_in_line_while_rows_go_on() -> None:
    runs = engine()
    runs.add(job("row", 3, 5))
    runs.score(ScoreJob("first", tuple(range(60, 70)), 1))
    runs.score(ScoreJob("second", (65, 66)))
    events = run(runs)
    assert text_of(events, "row") == counted(3, 5)
    kinds = [(type(event), event.job_id) for event in events if isinstance(event, Scored | Finished)]
    assert kinds == [(Finished, "row"), (Scored, "first"), (Scored, "second")]
    (second,) = [event for event in events if isinstance(event, Scored) and event.job_id == "second"]
    assert second.scores == (b"A", TokenScore(66, b"B", -66.0))


def test_a_prompt_that_cannot_be_read_costs_no_row_and_no_other_prompt_anything() -> None:
    backend = CountingBackend()
    runs = engine(backend)
    runs.add(job("row", 3, 5))
    runs.score(ScoreJob("bad", (65, 66, 67, 99)))
    runs.score(ScoreJob("good", (65, 66)))
    events = run(runs)
    assert [event.job_id for event in events if isinstance(event, Failed)] == ["bad"]
    assert [event.job_id for event in events if isinstance(event, Scored)] == ["good"]
    assert text_of(events, "row") == counted(3, 5)
    assert backend.inserted == ["row"]


@pytest.mark.parametrize("gone", ["first", "second"])
def test_a_cancelled_prompt_leaves_the_line_at_once(gone: str) -> None:
    runs = engine()
    runs.score(ScoreJob("first", tuple(range(60, 90))))
    runs.score(ScoreJob("second", tuple(range(60, 90))))
    assert runs.step() == []
    (end,) = runs.cancel(gone)
    assert isinstance(end, Finished) and end.reason == "cancelled"
    assert [event.job_id for event in run(runs)] == [{"first": "second", "second": "first"}[gone]]


def test_a_worker_scores_counts_cancels_and_answers_all_when_it_stops() -> None:
    worker = EngineWorker(lambda: OpenEngine(LETTERS, engine()), EngineSettings())
    worker.start()
    worker.wait_ready(5.0)
    ticket = worker.score([(65, 66), (65,)], top=1)
    events = [ticket.next(5.0), ticket.next(5.0)]
    assert [type(event) for event in events] == [Scored, Scored]
    assert [event.job_id for event in events if event] == [each.id for each in ticket.jobs]
    assert ticket.done and worker.idle()
    long = worker.score([(65,) * 1_000_000])
    long.cancel()
    end = long.next(5.0)
    assert isinstance(end, Finished) and end.reason == "cancelled"
    (bad,) = [worker.score([(65, 99)]).next(5.0)]
    assert isinstance(bad, Failed) and isinstance(bad.error, EngineFault)
    last = worker.score([(65,) * 1_000_000])
    assert worker.stop()
    end = last.next(5.0)
    assert isinstance(end, Failed) and isinstance(end.error, EngineUnavailable)


def test_a_canary_after_prompts_that_cannot_be_read_costs_the_rows_nothing() -> None:
    """The canary runs alone on a fresh backend; rows that were decoding go on where they were."""
    runs = engine()
    runs.add(job("row", 3, 9), job("other", 5, 9))
    events = [event for _ in range(5) for event in runs.step()]
    assert runs.alive()
    events += run(runs)
    assert (text_of(events, "row"), text_of(events, "other")) == (counted(3, 9), counted(5, 9))
