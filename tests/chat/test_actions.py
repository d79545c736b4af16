"""What the commands do to a talk.

Thread: any
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lattice_cli.chat.actions import Talk
from lattice_cli.chat.manner import Manner
from lattice_cli.chat.session import Session
from lattice_cli.errors import EngineFault, UsageError
from lattice_cli.events import Failed, Piece
from lattice_cli.job import Channel
from lattice_cli.model.card import ModelCard
from tests.chat.desk import DONE, USAGE, Desk, bot_card, heard, partner, says

pytestmark = pytest.mark.pure
CUT = replace(DONE, reason="length")


@pytest.fixture
def card(tmp_path: Path) -> ModelCard:
    return bot_card(tmp_path, think=["<think>", "</think>"])


def texts(talk: Talk) -> list[str]:
    return [turn.text for turn in talk.session.turns]


def test_an_answer_is_kept_without_its_thoughts_in_the_next_prompt(card: ModelCard) -> None:
    desk = Desk(says("Blue.", "Sky? Blue."), says("Yes."))
    talk = Talk(partner(desk, card))
    heard(talk, talk.ask("Which?"))
    heard(talk, talk.ask("Sure?"))
    assert texts(talk) == ["Which?", "Blue.", "Sure?", "Yes."]
    assert talk.session.turns[1].reasoning == "Sky? Blue."
    assert "Sky?" not in desk.job.prompt.text


def test_a_partial_answer_is_kept_and_no_answer_is_not(card: ModelCard) -> None:
    """Report 124: the partial text stays part of the talk."""
    talk = Talk(partner(Desk(says("Part", end=replace(DONE, reason="cancelled")), says("")), card))
    assert heard(talk, talk.ask("Go"))[1] is None
    _, note = heard(talk, talk.ask("And?"))
    assert texts(talk) == ["Go", "Part"]
    assert note == "there was no answer, so your message is not kept (Up brings it back)"


def test_a_failure_keeps_what_came_before_it(card: ModelCard) -> None:
    fault = Failed("", EngineFault("generation failed"))
    talk = Talk(partner(Desk((Piece("", Channel.ANSWER, "Some"), fault), (fault,)), card))
    heard(talk, talk.ask("Go"))
    heard(talk, talk.ask("Again"))
    assert texts(talk) == ["Go", "Some"]


def test_reset_forgets_all_but_the_system_prompt(card: ModelCard) -> None:
    """Report 132: the next prompt has none of it, the token count is back, and the message says what was cleared."""
    desk = Desk(says("Hello Zed."))
    talk = Talk(partner(desk, card), Session("Be brief."))
    first = talk.ask("Hi")
    fresh_tokens = len(desk.job.prompt.ids)
    heard(talk, first)
    heard(talk, talk.ask("My name is Zed."))
    said = talk.reset()
    assert said == "forgotten: 2 messages and the answers; system prompt, screen and input history stay"
    talk.ask("Hi")
    assert "Zed" not in desk.job.prompt.text
    assert "Be brief." in desk.job.prompt.text
    assert len(desk.job.prompt.ids) == fresh_tokens
    with pytest.raises(UsageError, match="nothing to undo"):
        talk.undo()


def test_undo_and_redo_walk_through_the_talk(card: ModelCard) -> None:
    talk = Talk(partner(Desk(says("1"), says("2"), says("3")), card))
    for question in ("one", "two"):
        heard(talk, talk.ask(question))
    assert talk.undo() == "taken back: `two`"
    assert texts(talk) == ["one", "1"]
    assert talk.redo() == "brought back: `two`"
    assert talk.undo() == "taken back: `two`"
    heard(talk, talk.ask("three"))
    assert texts(talk) == ["one", "1", "three", "3"]
    with pytest.raises(UsageError, match="nothing to redo"):
        talk.redo()


def test_undo_works_on_a_session_that_was_loaded(card: ModelCard) -> None:
    talk = Talk(partner(Desk(), card), Session().asked("one").answered("1").asked("two").answered("2"))
    talk.undo()
    talk.undo()
    assert texts(talk) == []
    with pytest.raises(UsageError, match="nothing to undo"):
        talk.undo()
    talk.redo()
    assert texts(talk) == ["one", "1"]


def test_undo_leaves_the_system_prompt_alone(card: ModelCard) -> None:
    talk = Talk(partner(Desk(says("1")), card))
    heard(talk, talk.ask("one"))
    talk.system("Be brief.")
    talk.undo()
    assert talk.session == Session("Be brief.")


def test_retry_asks_the_last_message_again_and_undo_brings_the_first_answer_back(card: ModelCard) -> None:
    desk = Desk(says("1"), says("2"))
    talk = Talk(partner(desk, card), manner=Manner().having(temperature=0.5))
    heard(talk, talk.ask("one"))
    heard(talk, talk.retry("1.25"))
    assert texts(talk) == ["one", "2"]
    assert [job.sampling.temperature for job in desk.jobs] == [0.5, 1.25]
    assert desk.jobs[0].prompt == desk.jobs[1].prompt
    assert talk.undo() == "now with its other answer: `one`"
    assert texts(talk) == ["one", "1"]
    talk.ask("two")
    assert desk.job.sampling.temperature == 0.5


def test_a_retry_that_brings_nothing_keeps_the_first_answer(card: ModelCard) -> None:
    talk = Talk(partner(Desk(says("1"), says("")), card))
    heard(talk, talk.ask("one"))
    heard(talk, talk.retry())
    assert texts(talk) == ["one", "1"]


def test_edit_replaces_the_last_message(card: ModelCard) -> None:
    talk = Talk(partner(Desk(says("1"), says("2")), card))
    heard(talk, talk.ask("one"))
    assert talk.last_message() == "one"
    heard(talk, talk.edit("two"))
    assert texts(talk) == ["two", "2"]
    with pytest.raises(UsageError, match="the message is empty"):
        talk.edit(" \n")


def test_continue_goes_on_with_an_answer_that_was_cut(card: ModelCard) -> None:
    desk = Desk(says("Once upon", end=CUT), says(" a time."))
    talk = Talk(partner(desk, card), manner=Manner().having(max_tokens=9))
    _, note = heard(talk, talk.ask("Tell"))
    assert note == "the answer was cut at `max_tokens`; /continue goes on with it"
    heard(talk, talk.continue_())
    assert desk.job.prompt.text.endswith("<|im_start|>assistant\nOnce upon")
    assert texts(talk) == ["Tell", "Once upon a time."]
    talk.undo()
    assert texts(talk) == ["Tell", "Once upon"]


def test_an_answer_that_was_complete_stays_as_it_is(card: ModelCard) -> None:
    talk = Talk(partner(Desk(says("All."), says("")), card))
    heard(talk, talk.ask("Tell"))
    before = talk.session
    assert heard(talk, talk.continue_())[1] == "nothing was added to the answer"
    assert talk.session is before


def test_continue_goes_on_with_a_thought_that_was_cut(card: ModelCard) -> None:
    desk = Desk(says("", "Let me", end=CUT), says("Done.", " see."))
    talk = Talk(partner(desk, card))
    _, note = heard(talk, talk.ask("Go"))
    assert note is not None and note.startswith("the thought was cut before an answer; /continue goes on with it")
    assert texts(talk) == []
    heard(talk, talk.continue_())
    assert desk.job.prompt.text.endswith("<think>Let me")
    assert texts(talk) == ["Go", "Done."]
    assert talk.session.turns[1].reasoning == "Let me see."


@pytest.mark.parametrize("command", ["retry", "last_message", "continue_", "copy_text"])
def test_what_needs_an_answer_says_so_where_there_is_none(card: ModelCard, command: str) -> None:
    with pytest.raises(UsageError, match=r"^there is no (message|answer)"):
        getattr(Talk(partner(Desk(), card)), command)()


def test_the_system_prompt_is_shown_set_and_taken_away(card: ModelCard) -> None:
    talk = Talk(partner(Desk(), card))
    assert talk.system() == "there is no system prompt"
    assert talk.system("Be brief.") == "system prompt set, from the next message on; /reset starts afresh"
    assert talk.system("") == "system prompt: Be brief."
    assert talk.system("-").startswith("system prompt taken away")
    assert talk.session.system is None


def test_a_setting_is_set_shown_and_used(card: ModelCard) -> None:
    desk = Desk()
    talk = Talk(partner(desk, card))
    assert talk.set("temperature", "0.25") == "temperature: 0.25"
    assert talk.set("stop", "END") == 'stop: "END"'
    talk.ask("Hi")
    assert (desk.job.sampling.temperature, desk.job.limits.stop) == (0.25, ("END",))
    assert talk.set("temperature", "-") == "temperature: 0.7 (built in)"
    with pytest.raises(UsageError, match="`temperature` must be a number"):
        talk.set("temperature", "warm")
    assert dict(talk.settings())["stop"] == '"END"'


def test_thinking_has_three_ways(card: ModelCard) -> None:
    desk = Desk()
    talk = Talk(partner(desk, card))
    assert talk.think() == "thoughts are shown"
    assert talk.think("hide") == "thoughts are hidden; the model still thinks"
    talk.ask("Hi")
    assert desk.job.limits.reasoning_tokens is None
    talk.think("off")
    talk.ask("Hi")
    assert desk.job.limits.reasoning_tokens == 1
    with pytest.raises(UsageError, match="`loud` is no way to think"):
        talk.think("loud")
    assert talk.thinking == "off"


def test_costs_are_added_up(card: ModelCard) -> None:
    end = replace(DONE, usage=replace(USAGE, cached_tokens=40))
    talk = Talk(partner(Desk(says("1"), says("2", end=end)), card))
    for question in ("one", "two"):
        heard(talk, talk.ask(question))
    rows = dict(talk.stats())
    assert (rows["model"], rows["answers"], rows["prompt tokens"]) == ("bot", "2", "104, 40 of them reused")
    assert (rows["answer tokens"], rows["speed"]) == ("6", "4.0 tok/s")
    assert rows["first token"] == "after 0.25 s on average"
    count, window, sentence = talk.tokens()
    assert (count.exact, window, sentence) == (
        True,
        1000,
        f"{count.tokens} of 1,000 tokens ({count.tokens // 10}% full)",
    )
    assert rows["window"] == sentence


def test_the_last_answer_is_what_is_copied(card: ModelCard) -> None:
    talk = Talk(partner(Desk(says("**1**", "Hm")), card))
    heard(talk, talk.ask("one"))
    assert talk.copy_text() == "**1**"


def test_a_temperature_that_is_none_is_refused_with_how_it_is_written(card: ModelCard) -> None:
    talk = Talk(partner(Desk(), card))
    with pytest.raises(UsageError, match="`temperature` must be a number") as error:
        talk.retry("hot")
    assert error.value.hint == "`/retry 0.9`, or `/retry` alone"
