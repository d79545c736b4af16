"""The view without a terminal.

Thread: any
"""

from __future__ import annotations

import io

import pytest

from lattice_cli.chat.plain import PlainView
from lattice_cli.events import Piece, Started
from lattice_cli.job import Channel

pytestmark = pytest.mark.pure


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(*texts: str | tuple[str, Channel], stream: io.StringIO, talk: io.StringIO | None = None) -> str:
    view = PlainView(stream, talk)
    view.begin()
    view.show(Started("job", 3))
    for text in texts:
        said, channel = text if isinstance(text, tuple) else (text, Channel.ANSWER)
        view.show(Piece("job", channel, said))
        view.tick()
    view.end()
    return stream.getvalue()


@pytest.mark.parametrize(
    ("texts", "written"),
    [
        (("one", " two"), "one two\n"),
        (("\n\n", "\none\n", "\n", "two\n", "\n"), "one\n\ntwo\n"),
        (("  indented  ",), "  indented  \n"),
        ((), "\n"),
        (("\n",), "\n"),
    ],
)
def test_an_answer_ends_with_exactly_one_line_break(texts: tuple[str, ...], written: str) -> None:
    assert shown(*texts, stream=io.StringIO()) == written


def test_text_is_written_as_it_comes() -> None:
    """A pipe's reader wants the first words at once; only line breaks that may be the last are held back."""
    stream = io.StringIO()
    view = PlainView(stream, None)
    for text, so_far in (("one", "one"), ("\n\n", "one"), ("two", "one\n\ntwo")):
        view.show(Piece("job", Channel.ANSWER, text))
        assert stream.getvalue() == so_far


def test_a_file_gets_the_exact_text_and_a_terminal_no_control_characters() -> None:
    assert shown("a\x1b[2Jb", stream=io.StringIO()) == "a\x1b[2Jb\n"
    assert shown("a\x1b[2Jb", stream=Terminal()) == "a�[2Jb\n"


def test_thoughts_go_to_a_terminal_or_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    thought = ("Hm.", Channel.REASONING)
    for talk, told in ((Terminal(), "Hm.\n\n"), (io.StringIO(), "")):
        assert shown(thought, "\n\nYes.", stream=io.StringIO(), talk=talk) == "Yes.\n"
        assert talk.getvalue() == told


def test_thoughts_are_dim_where_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    talk = Terminal()
    shown(("Hm.", Channel.REASONING), stream=io.StringIO(), talk=talk)
    assert talk.getvalue() == "\x1b[2mHm.\x1b[0m\n\n"
