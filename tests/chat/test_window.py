"""A window that fills: it is said before anything is sent, and nothing is cut in silence.

Thread: any
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lattice_cli.chat.actions import Talk
from lattice_cli.chat.manner import Manner
from lattice_cli.chat.session import SUMMARY_ASKED, Session
from lattice_cli.chat.window import WindowFull, room_wanted
from lattice_cli.errors import UsageError
from lattice_cli.model.card import ModelCard
from tests.chat.desk import DONE, Desk, bot_card, heard, partner, says

pytestmark = pytest.mark.pure


@pytest.fixture
def card(tmp_path: Path) -> ModelCard:
    return bot_card(tmp_path)  # 1000 tokens, one a byte


def long_talk(desk: Desk, card: ModelCard, length: int = 120, manner: Manner | None = None) -> Talk:
    """Three questions and answers that leave no room for a fourth."""
    session = Session("Be brief.")
    for name in "abc":
        session = session.asked(name * length).answered(name.upper() * length)
    return Talk(partner(desk, card), session, manner)


@pytest.mark.parametrize(
    ("context", "most", "room"), [(8192, None, 256), (1000, None, 125), (1000, 40, 40), (1000, 4000, 125), (4, None, 1)]
)
def test_an_answer_should_have_some_room(context: int, most: int | None, room: int) -> None:
    assert room_wanted(context, most) == room


def test_a_prompt_that_does_not_fit_is_never_sent(card: ModelCard) -> None:
    """Report 95: both numbers are named. Nothing is cut in silence."""
    desk = Desk()
    talk = long_talk(desk, card)
    before = talk.session
    with pytest.raises(WindowFull) as full:
        talk.ask("d" * 120)
    assert desk.jobs == []
    assert talk.session == before
    assert full.value.message == (
        "the prompt has 1112 tokens and the context window is 1000 tokens, so there is no room for an answer"
    )
    assert full.value.can_shorten


def test_too_little_room_for_an_answer_is_said_too(card: ModelCard) -> None:
    talk = Talk(partner(Desk(), card))
    with pytest.raises(WindowFull) as full:
        talk.ask("x" * 850)
    assert full.value.message == (
        "the prompt has 900 tokens and the context window is 1000 tokens, "
        "which leaves 99 for an answer, and 125 are wanted"
    )
    assert not full.value.can_shorten
    assert full.value.hint == "send a shorter message, or ask for less with `max_tokens`"
    talk.set("max_tokens", "50")
    talk.ask("x" * 850)
    with pytest.raises(WindowFull) as full:
        talk.ask("x" * 1850)
    assert full.value.hint == "send a shorter message"  # a shorter answer would not help


def test_the_oldest_turns_are_dropped_from_prompts_and_kept_for_people(card: ModelCard) -> None:
    desk = Desk(says("D"))
    talk = long_talk(desk, card)
    with pytest.raises(WindowFull) as full:
        talk.ask("d" * 120)
    asking = talk.drop_oldest(full.value)
    assert asking.note == "the oldest 2 turns will not be sent any more; what was saved stays saved"
    text = desk.job.prompt.text
    assert "aaa" not in text and "bbb" in text and "Be brief." in text and "ddd" in text
    heard(talk, asking)
    assert [turn.text[:1] for turn in talk.session.turns] == list("aAbBcCdD")
    talk.undo()
    assert talk.session.forgotten == 0


def test_as_many_go_as_must(card: ModelCard) -> None:
    desk = Desk()
    talk = long_talk(desk, card)
    with pytest.raises(WindowFull) as full:
        talk.ask("d" * 550)
    talk.drop_oldest(full.value)
    text = desk.job.prompt.text
    assert "bbb" not in text and "ccc" not in text and "ddd" in text


def test_a_message_too_long_by_itself_is_said_to_be_so(card: ModelCard) -> None:
    talk = long_talk(Desk(), card)
    with pytest.raises(WindowFull) as full:
        talk.ask("d" * 950)
    with pytest.raises(UsageError, match="leaving out all earlier messages is not enough"):
        talk.drop_oldest(full.value)


def test_the_model_sums_up_what_was_said(tmp_path: Path) -> None:
    desk = Desk(says("We spoke of a."), says("D"))
    talk = long_talk(desk, bot_card(tmp_path, context_tokens=2000), 240)
    with pytest.raises(WindowFull) as full:
        talk.ask("d" * 240)
    asking = talk.summarise(full.value)
    assert SUMMARY_ASKED in desk.job.prompt.text
    assert "ddd" not in desk.job.prompt.text
    assert asking.max_tokens == 400
    heard(talk, asking)
    assert talk.session.summary == "We spoke of a."
    heard(talk, talk.again(full.value))
    text = desk.job.prompt.text
    assert "We spoke of a." in text and "aaa" not in text and "ddd" in text and "Be brief." in text
    assert [turn.text[:1] for turn in talk.session.turns] == list("aAbBcCdD")
    assert talk.undo() == "taken back: `" + "d" * 40 + "…`"
    assert talk.undo() == "the summary is taken back"
    assert talk.redo() == "the summary stands again"


def test_a_summary_that_was_stopped_changes_nothing(card: ModelCard) -> None:
    talk = long_talk(Desk(says("")), card, 110)
    before = talk.session
    with pytest.raises(WindowFull) as full:
        talk.ask("d" * 110)
    with pytest.raises(UsageError, match="no whole summary"):
        heard(talk, talk.summarise(full.value))
    assert talk.session == before


def test_going_on_with_an_answer_is_shortened_in_the_same_way(card: ModelCard) -> None:
    desk = Desk(says(" more"))
    talk = long_talk(desk, card, 145)
    with pytest.raises(WindowFull) as full:
        talk.continue_()
    heard(talk, talk.drop_oldest(full.value))
    assert desk.job.prompt.text.endswith("C" * 145)
    assert talk.session.turns[-1].text == "C" * 145 + " more"


def test_an_answer_that_fills_the_window_says_so(card: ModelCard) -> None:
    talk = Talk(partner(Desk(says("x", end=replace(DONE, reason="length"))), card))
    _, note = heard(talk, talk.ask("Go"))
    assert note == "the answer was cut: the context window of 1000 tokens is full"
