"""A conversation in, an answer out: what job is made of it, and what Ctrl-C does to one.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.chat.exchange import Exchange, Interrupts, Manner, speed_line
from lattice_cli.chat.session import Session
from lattice_cli.engine.scripted import open_script
from lattice_cli.engine.worker import Message, Ticket
from lattice_cli.errors import EngineFault, PromptTooLong
from lattice_cli.events import Event, Failed, Finished, Piece, Started, Timing, Usage
from lattice_cli.job import Channel, Job, SamplingChoice
from lattice_cli.model.card import ModelCard, ModelSource

pytestmark = pytest.mark.pure

AS_IT_COMES = Manner()
USAGE, TIMING = Usage(prompt_tokens=52, completion_tokens=3), Timing(first_token_s=0.25, decode_s=0.5)


class Desk:
    """Where a worker stands: notes the job, plays what it is given; a cancel brings `on_cancel`."""

    def __init__(self, *events: type[Event] | Event, on_cancel: bool = True) -> None:
        self.events, self.on_cancel = events, on_cancel
        self.job: Job | None = None
        self.cancels = 0

    def submit(self, jobs: Sequence[Job]) -> Ticket:
        (self.job,) = jobs
        self.ticket = Ticket(jobs, self._message)
        for event in self.events:
            self.ticket.deliver(replace(event, job_id=self.job.id))  # type: ignore[type-var]
        return self.ticket

    def _message(self, message: Message) -> None:
        self.cancels += 1
        if self.on_cancel and self.cancels == 1 and self.job:
            self.ticket.deliver(Finished(self.job.id, "cancelled", USAGE, TIMING))


class Watcher:
    """A view that notes what it was told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def show(self, event: Event) -> None:
        self.calls.append(type(event).__name__)

    def tick(self) -> None:
        self.calls.append("tick")

    def end(self) -> None:
        self.calls.append("end")


@pytest.fixture
def card(tmp_path: Path) -> ModelCard:
    file = tmp_path / "bot.json"
    file.write_text(json.dumps({"replies": [], "context_tokens": 100}))
    return open_script(ModelSource("bot", file, "script"), None)[0]


def exchange(desk: Desk, card: ModelCard, manner: Manner = AS_IT_COMES, **more: Any) -> tuple[Exchange, Watcher]:
    watcher = Watcher()
    interrupts = more.pop("interrupts", Interrupts())
    return Exchange(desk, card, manner, watcher, interrupts, **more), watcher  # type: ignore[arg-type]


HI = Session().asked("Hi")
DONE = Finished("", "stop", USAGE, TIMING)


def test_an_answer_is_shown_event_by_event_and_folded(card: ModelCard, capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk(Started("", 52), Piece("", Channel.REASONING, "Hm."), Piece("", Channel.ANSWER, "Yes."), DONE)
    asking, watcher = exchange(desk, card)
    completion = asking.answer(HI)
    assert (completion.reasoning, completion.answer) == ("Hm.", "Yes.")
    assert watcher.calls == ["begin", "Started", "Piece", "Piece", "Finished", "end"]
    assert capsys.readouterr() == ("", "52 prompt tokens, 3 tokens, 4.0 tok/s, first token after 0.25 s\n")


def test_quiet_hides_the_speed_line(card: ModelCard, capsys: pytest.CaptureFixture[str]) -> None:
    exchange(Desk(DONE), card, Manner(quiet=True))[0].answer(HI)
    assert capsys.readouterr() == ("", "")


def test_the_job_takes_the_flags_then_the_models_advice_then_what_is_built_in(card: ModelCard) -> None:
    advised = replace(card, sampling=SamplingChoice(temperature=0.2, top_k=5))
    desk = Desk(DONE)
    exchange(desk, advised, Manner(SamplingChoice(temperature=0.0, seed=7)))[0].answer(HI)
    assert desk.job is not None
    sampling = desk.job.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.repetition_penalty, sampling.seed) == (
        0.0,
        5,
        0.9,
        1.0,
        7,
    )


@pytest.mark.parametrize(("asked", "given"), [(None, 47), (10, 10), (1000, 47)])
def test_an_answer_may_have_what_fits_and_no_more_than_asked(card: ModelCard, asked: int | None, given: int) -> None:
    desk = Desk(DONE)
    exchange(desk, card, Manner(max_tokens=asked))[0].answer(HI)
    assert desk.job is not None
    assert desk.job.limits.max_tokens == given


def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_shown(card: ModelCard) -> None:
    """Report 95."""
    desk = Desk(DONE)
    asking, watcher = exchange(desk, card)
    with pytest.raises(PromptTooLong):
        asking.answer(Session().asked("x" * 60))
    assert (desk.job, watcher.calls) == (None, [])


def test_ctrl_c_keeps_what_was_said(card: ModelCard, capsys: pytest.CaptureFixture[str]) -> None:
    """Report 124: the engine is asked once, and its last words are heard."""
    interrupts = Interrupts()
    desk = Desk(Started("", 52), Piece("", Channel.ANSWER, "Part"))

    def press() -> None:
        interrupts.count += 1

    asking, watcher = exchange(desk, card, interrupts=interrupts, pump=press)
    completion = asking.answer(HI)
    assert completion.answer == "Part"
    assert watcher.calls == ["begin", "Started", "Piece", "Finished", "end"]
    assert desk.cancels == 1
    assert capsys.readouterr().err == "stopped, 52 prompt tokens, 3 tokens, 4.0 tok/s, first token after 0.25 s\n"


def test_ctrl_c_does_not_wait_for_a_step_that_takes_long(card: ModelCard, capsys: pytest.CaptureFixture[str]) -> None:
    """A chunk of a long prompt takes seconds on a small machine; the prompt comes back at once."""
    now_s, interrupts = 0.0, Interrupts()
    desk = Desk(Piece("", Channel.ANSWER, "Part"), on_cancel=False)

    def press() -> None:
        nonlocal now_s
        interrupts.count, now_s = 1, now_s + 1.0

    asking, watcher = exchange(desk, card, interrupts=interrupts, pump=press, clock=lambda: now_s)
    completion = asking.answer(HI)
    assert (completion.answer, completion.finished) == ("Part", None)
    assert watcher.calls == ["begin", "Piece", "tick", "end"]
    assert capsys.readouterr() == ("", "stopped\n")


def test_a_failure_is_in_the_completion_and_the_view_is_closed(card: ModelCard) -> None:
    fault = EngineFault("generation failed")
    asking, watcher = exchange(Desk(Piece("", Channel.ANSWER, "Part"), Failed("", fault)), card)
    completion = asking.answer(HI)
    assert completion.failed is not None
    assert (completion.answer, completion.failed.error) == ("Part", fault)
    assert watcher.calls == ["begin", "Piece", "Failed", "end"]


def test_a_view_that_cannot_write_ends_the_job(card: ModelCard) -> None:
    """`| head -1`: a model that goes on for nobody."""
    desk = Desk(Piece("", Channel.ANSWER, "Part"))
    asking, watcher = exchange(desk, card)

    def broken(event: Event) -> None:
        raise BrokenPipeError

    watcher.show = broken  # type: ignore[method-assign]
    with pytest.raises(BrokenPipeError):
        asking.answer(HI)
    assert (desk.cancels, watcher.calls) == (1, ["begin", "end"])


@pytest.mark.parametrize(
    ("finished", "line"),
    [
        (DONE, "52 prompt tokens, 3 tokens, 4.0 tok/s, first token after 0.25 s"),
        (
            replace(DONE, reason="length"),
            "cut at the limit, 52 prompt tokens, 3 tokens, 4.0 tok/s, first token after 0.25 s",
        ),
        (replace(DONE, usage=Usage(1, 1)), "1 prompt token, 1 token, first token after 0.25 s"),
        (replace(DONE, usage=Usage(9, 0), reason="cancelled"), "stopped, 9 prompt tokens, 0 tokens"),
    ],
)
def test_the_speed_line_says_only_what_was_measured(finished: Finished, line: str) -> None:
    """Report 134: a decode rate that includes the prefill, or one made of a single token."""
    assert speed_line(finished) == line
