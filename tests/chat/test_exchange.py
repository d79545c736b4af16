"""An answer heard out: what is shown of it, and what Ctrl-C does to one.

Thread: any
"""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.chat.actions import Talk
from lattice_cli.chat.exchange import Exchange, Interrupts, speed_line
from lattice_cli.errors import EngineFault
from lattice_cli.events import Event, Failed, Finished, Piece, Started, Usage
from lattice_cli.job import Channel
from lattice_cli.model.card import ModelCard
from tests.chat.desk import DONE, Desk, Watcher, bot_card, partner

pytestmark = pytest.mark.pure


@pytest.fixture
def card(tmp_path: Path) -> ModelCard:
    return bot_card(tmp_path, context_tokens=100)


def exchange(**more: Any) -> tuple[Exchange, Watcher]:
    watcher = Watcher()
    return Exchange(watcher, more.pop("interrupts", Interrupts()), **more), watcher


def test_an_answer_is_shown_event_by_event_and_folded(card: ModelCard, capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk((Started("", 52), Piece("", Channel.REASONING, "Hm."), Piece("", Channel.ANSWER, "Yes."), DONE))
    asking, watcher = exchange()
    completion = asking.answer(Talk(partner(desk, card)).ask("Hi"))
    assert (completion.reasoning, completion.answer) == ("Hm.", "Yes.")
    assert watcher.calls == ["begin", "Started", "Piece", "Piece", "Finished", "end"]
    assert capsys.readouterr() == ("", "52 prompt tokens, 3 tokens, 4.0 tok/s, first token after 0.25 s\n")


def test_quiet_hides_the_speed_line(card: ModelCard, capsys: pytest.CaptureFixture[str]) -> None:
    exchange(quiet=True)[0].answer(Talk(partner(Desk(), card)).ask("Hi"))
    assert capsys.readouterr() == ("", "")


def test_a_ctrl_c_that_was_swallowed_is_known(card: ModelCard) -> None:
    """One during the load was lost in 1 of 150 runs: an import's callback took what was raised."""
    interrupts = Interrupts()
    with interrupts.raised():
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert interrupts.count == 1
        asking, watcher = exchange(interrupts=interrupts)
        asking.answer(Talk(partner(Desk((Started("", 52),)), card)).ask("Hi"))
    assert watcher.calls[-2:] == ["Finished", "end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_keeps_what_was_said(card: ModelCard, capsys: pytest.CaptureFixture[str]) -> None:
    """Report 124: the engine is asked once, and its last words are heard."""
    interrupts = Interrupts()
    desk = Desk((Started("", 52), Piece("", Channel.ANSWER, "Part")))

    def press() -> None:
        interrupts.count += 1

    asking, watcher = exchange(interrupts=interrupts, pump=press)
    completion = asking.answer(Talk(partner(desk, card)).ask("Hi"))
    assert completion.answer == "Part"
    assert watcher.calls == ["begin", "Started", "Piece", "Finished", "end"]
    assert desk.cancels == 1
    assert capsys.readouterr().err == "stopped, 52 prompt tokens, 3 tokens, 4.0 tok/s, first token after 0.25 s\n"


def test_ctrl_c_does_not_wait_for_a_step_that_takes_long(card: ModelCard, capsys: pytest.CaptureFixture[str]) -> None:
    """A chunk of a long prompt takes seconds on a small machine; the prompt comes back at once."""
    now_s, interrupts = 0.0, Interrupts()
    desk = Desk((Piece("", Channel.ANSWER, "Part"),), on_cancel=False)

    def press() -> None:
        nonlocal now_s
        interrupts.count, now_s = 1, now_s + 1.0

    asking, watcher = exchange(interrupts=interrupts, pump=press, clock=lambda: now_s)
    completion = asking.answer(Talk(partner(desk, card)).ask("Hi"))
    assert (completion.answer, completion.finished) == ("Part", None)
    assert watcher.calls == ["begin", "Piece", "tick", "end"]
    assert capsys.readouterr() == ("", "stopped\n")


def test_a_failure_is_in_the_completion_and_the_view_is_closed(card: ModelCard) -> None:
    fault = EngineFault("generation failed")
    asking, watcher = exchange()
    desk = Desk((Piece("", Channel.ANSWER, "Part"), Failed("", fault)))
    completion = asking.answer(Talk(partner(desk, card)).ask("Hi"))
    assert completion.failed is not None
    assert (completion.answer, completion.failed.error) == ("Part", fault)
    assert watcher.calls == ["begin", "Piece", "Failed", "end"]


def test_a_view_that_cannot_write_ends_the_job(card: ModelCard) -> None:
    """`| head -1`: a model that goes on for nobody."""
    desk = Desk((Piece("", Channel.ANSWER, "Part"),))
    asking, watcher = exchange()

    def broken(event: Event) -> None:
        raise BrokenPipeError

    watcher.show = broken  # type: ignore[method-assign]
    with pytest.raises(BrokenPipeError):
        asking.answer(Talk(partner(desk, card)).ask("Hi"))
    assert (desk.cancels, watcher.calls) == (1, ["begin", "end"])


@pytest.mark.parametrize(
    ("finished", "line"),
    [
        (DONE, "52 prompt tokens, 3 tokens, 4.0 tok/s, first token after 0.25 s"),
        (
            replace(DONE, reason="length"),
            "cut at the limit, 52 prompt tokens, 3 tokens, 4.0 tok/s, first token after 0.25 s",
        ),
        (
            replace(DONE, usage=Usage(52, 3, cached_tokens=40)),
            "52 prompt tokens (40 reused), 3 tokens, 4.0 tok/s, first token after 0.25 s",
        ),
        (replace(DONE, usage=Usage(1, 1)), "1 prompt token, 1 token, first token after 0.25 s"),
        (replace(DONE, usage=Usage()), "no token counts from this server, first token after 0.25 s"),
        (replace(DONE, usage=Usage(9, 0), reason="cancelled"), "stopped, 9 prompt tokens, 0 tokens"),
    ],
)
def test_the_speed_line_says_only_what_was_measured(finished: Finished, line: str) -> None:
    """Report 134: a decode rate that includes the prefill, or one made of a single token."""
    assert speed_line(finished) == line
