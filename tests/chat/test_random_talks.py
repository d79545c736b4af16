"""Random talks: whatever commands follow one another, the conversation stays one that a template takes.

Thread: any
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lattice_cli.chat.actions import Asking, Talk
from lattice_cli.chat.keeping import Keeping
from lattice_cli.chat.store import Store
from lattice_cli.chat.window import WindowFull
from lattice_cli.errors import EngineFault, LatticeError
from lattice_cli.events import Event, Failed, Piece
from lattice_cli.job import Channel
from lattice_cli.model.card import ModelCard
from tests.chat.desk import DONE, Desk, bot_card, heard, partner, says
from tests.samples import seeds

pytestmark = pytest.mark.pure

CUT, STOPPED = replace(DONE, reason="length"), replace(DONE, reason="cancelled")


class RandomDesk(Desk):
    """Answers of every kind: whole, cut, stopped, empty, thoughts alone, failures early and late."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self.answers = [self._answer() for _ in range(200)]

    def _answer(self) -> tuple[Event, ...]:
        text = "x" * self._chance.choice((0, 1, 40, 150))
        fault = Failed("", EngineFault("generation failed"))
        return self._chance.choice(
            (
                says(text),
                says(text, "thought", end=CUT),
                says("", "thought", end=STOPPED),
                says(text, end=STOPPED),
                (fault,),
                (Piece("", Channel.ANSWER, "part"), fault),
            )
        )


def asked(talk: Talk, chance: random.Random) -> Callable[[], Asking]:
    message = chance.choice(("short", "y" * 150, "z" * 400))
    return chance.choice(
        (
            lambda: talk.ask(message),
            lambda: talk.ask(message),
            lambda: talk.retry(chance.choice((None, "0.5"))),
            lambda: talk.edit(message),
            talk.continue_,
        )
    )


def told(talk: Talk, chance: random.Random) -> Callable[[], object]:
    return chance.choice(
        (
            talk.undo,
            talk.undo,
            talk.redo,
            talk.reset,
            lambda: talk.system(chance.choice(("", "Be brief.", "-"))),
            lambda: talk.think(chance.choice(("show", "hide", "off"))),
            lambda: talk.set("max_tokens", chance.choice(("-", "5", "900"))),
            lambda: talk.load("1"),
            lambda: talk.save(chance.choice(("", "name"))),
            talk.tokens,
            talk.stats,
        )
    )


def step(talk: Talk, chance: random.Random) -> None:
    """One command, and an answer to the question of a full window."""
    if chance.random() < 0.4:
        told(talk, chance)()
        return
    try:
        heard(talk, asked(talk, chance)())
    except WindowFull as full:
        match chance.choice("ds-"):
            case "d":
                heard(talk, talk.drop_oldest(full))
            case "s":
                heard(talk, talk.summarise(full))
                heard(talk, talk.again(full))


@pytest.mark.parametrize("seed", seeds(40, sample=12))
def test_a_talk_stays_one_that_can_go_on(tmp_path: Path, seed: int) -> None:
    """Question and answer by turns, in the session, in every prompt and on the disk; the disk has what the talk has."""
    chance = random.Random(seed)
    card: ModelCard = bot_card(tmp_path, think=["<think>", "</think>"])
    desk = RandomDesk(chance)
    store = Store(tmp_path / "sessions.sqlite3")
    talk = Talk(partner(desk, card), keeping=Keeping(store))
    for _ in range(40):
        before, jobs = talk.session, len(desk.jobs)
        try:
            step(talk, chance)
        except LatticeError:
            assert talk.session.turns == before.turns or len(desk.jobs) > jobs  # a summary may have come before it
        turns = talk.session.turns
        assert [turn.role for turn in turns] == ["user", "assistant"] * (len(turns) // 2)
        assert all(turn.text.strip() for turn in turns)
        assert 0 <= talk.session.forgotten <= len(turns) and talk.session.forgotten % 2 == 0
        roles = [turn.role for turn in talk.session.conversation if turn.role != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        for job in desk.jobs[jobs:]:
            assert len(job.prompt.ids) + job.limits.max_tokens + 1 <= card.context_tokens
    saved = [found.session for one in store.listed() if (found := store.find(str(one.id)))]
    assert not talk.session.turns or talk.session in saved
