"""The conversation as a value.

Thread: any
"""

from __future__ import annotations

import pytest

from lattice_cli.chat.session import Session
from lattice_cli.conversation import said

pytestmark = pytest.mark.pure


def test_a_conversation_is_the_system_prompt_and_the_turns() -> None:
    session = Session("Be brief.").asked("Hi").answered("Hello.").asked("And?")
    assert session.conversation == (
        said("system", "Be brief."),
        said("user", "Hi"),
        said("assistant", "Hello."),
        said("user", "And?"),
    )
    assert session.questions == 2


def test_without_a_system_prompt_there_is_no_system_turn() -> None:
    """An empty system turn would replace the template's own."""
    assert Session().asked("Hi").conversation == (said("user", "Hi"),)
    assert Session("").asked("Hi").conversation == (said("user", "Hi"),)


def test_a_question_that_was_never_answered_leaves_no_trace() -> None:
    """Two questions in a row are what many templates refuse."""
    session = Session().asked("Hi").answered("Hello.")
    session.asked("lost")
    assert session.asked("And?").conversation == (said("user", "Hi"), said("assistant", "Hello."), said("user", "And?"))


def test_reset_forgets_the_turns_and_keeps_the_system_prompt() -> None:
    """Report 132: users proved that clearing left the old context in place."""
    session = Session("Be brief.").asked("My name is Zed.").answered("Hi Zed.").reset()
    assert session == Session("Be brief.")
    assert session.asked("What is my name?").conversation == (
        said("system", "Be brief."),
        said("user", "What is my name?"),
    )


def test_another_system_prompt_leaves_the_turns() -> None:
    session = Session().asked("Hi").answered("Hello.").told("Be long.")
    assert session.conversation == (said("system", "Be long."), said("user", "Hi"), said("assistant", "Hello."))
    assert session.told(None).conversation == (said("user", "Hi"), said("assistant", "Hello."))
