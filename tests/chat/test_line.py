"""Keys in, a typed line out: prompt_toolkit's line behind a pipe, with our keys.

Thread: any
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.input.typeahead import store_typeahead

from lattice_cli.chat.ahead import preview
from lattice_cli.chat.edited_line import EditedLine
from lattice_cli.chat.typed import Typed

pytestmark = pytest.mark.pure

PASTE = "\x1b[200~{}\x1b[201~"


class Stream(io.StringIO):
    def fileno(self) -> int:
        raise io.UnsupportedOperation

    def isatty(self) -> bool:
        return True

    @property
    def encoding(self) -> str:
        return "utf-8"


@contextmanager
def keyboard(*history: str) -> Iterator[tuple[EditedLine, Stream, object]]:
    with create_pipe_input() as pipe:
        stream, earlier = Stream(), InMemoryHistory()
        for text in history:
            earlier.append_string(text)
        yield EditedLine(pipe, 0, stream, earlier), stream, pipe


def typed(keys: str, *history: str, draft: str = "") -> Typed:
    with keyboard(*history) as (line, _, pipe):
        pipe.send_text(keys)  # type: ignore[attr-defined]
        return line.read(draft)


def test_enter_sends_and_alt_enter_is_a_new_line() -> None:
    assert typed("one\x1b\rtwo\r") == Typed("one\ntwo")


def test_a_block_of_quotation_marks_takes_enter_as_a_new_line() -> None:
    """Report 133: it looked as if a new message began."""
    assert typed('"""one\rtwo\r/exit\r"""\r') == Typed('"""one\ntwo\n/exit\n"""')


def test_a_paste_of_500_lines_with_exit_among_them_is_one_message() -> None:
    """Report 122: sent line by line; a line that is a command was run."""
    text = "first\n" + "\n".join(f"line {i}" if i % 7 else "/exit" for i in range(500))
    assert typed(PASTE.format(text.replace("\n", "\r")) + "\r") == Typed(text, pasted=True)


@pytest.mark.parametrize("start", ["/exit\r\n", "/system x\r\n", "\r\n/exit\r\n", '"""\r\n'])
def test_a_paste_that_begins_with_a_command_is_a_message(start: str) -> None:
    line = typed(PASTE.format(start + "more") + "\r")
    assert line.pasted
    assert line.text == (start + "more").replace("\r\n", "\n")


def test_a_pasted_line_or_a_paste_behind_a_command_is_what_was_typed() -> None:
    """`/system ` and then a pasted prompt."""
    assert typed(PASTE.format("/help") + "\r") == Typed("/help")
    assert typed("/system " + PASTE.format("one\ntwo") + "\r") == Typed("/system one\ntwo")


def test_a_paste_that_was_taken_away_again_makes_no_message() -> None:
    assert typed(PASTE.format("one\ntwo") + "\x03/exit\r") == Typed("/exit")


def test_at_words_of_a_paste_are_known_as_such() -> None:
    assert typed("see @mine " + PASTE.format("and @theirs") + "\r").plain == {"@theirs"}
    assert typed("@" + PASTE.format("/etc/hosts") + "\r").plain == frozenset()


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("one two\x1bb\x1b\x7fX\r", "Xtwo"),  # back a word, cut the word before
        ("one two\x1b[1;5DX\r", "one Xtwo"),  # Ctrl-Left
        ("one two\x01\x1bfX\r", "oneX two"),  # to the start, Alt-F
        ("one two\x1b[1;5D\x1b[1;5D\x1b[1;5CX\r", "oneX two"),
        ("\x1b[A\r", "newest"),
        ("\x12ol\r\r", "older"),  # Ctrl-R
        ("one\x15two\r", "two"),
        ("漢字😀\x7f!\r", "漢字!"),
    ],
)
def test_jumps_searches_and_wide_characters(keys: str, text: str) -> None:
    assert typed(keys, "older", "newest").text == text


def test_a_message_that_could_not_be_sent_is_there_to_be_changed() -> None:
    assert typed("!\r", draft="Hi").text == "Hi!"


def test_what_a_paste_holds_reaches_the_screen_harmless() -> None:
    """A pasted escape sequence would set titles, or worse, when it is shown again above the answer."""
    with keyboard() as (line, stream, pipe):
        pipe.send_text(PASTE.format("a\x1b]0;title\x07b\x9b31mc\u202ed") + "\r")  # type: ignore[attr-defined]
        line.read()
        assert "\x1b]0;" not in stream.getvalue()
        assert "\x9b" not in stream.getvalue()
        assert "\u202e" not in stream.getvalue()
        shown = stream.getvalue().rpartition("\x1b[0m")[2]
        assert shown.startswith("a�]0;title�b�31mc�d\n")


@pytest.mark.parametrize(
    ("keys", "answer"), [("d", "d"), ("S", "s"), ("x", ""), ("\r", ""), ("\x1b", ""), ("\x03", ""), ("\x04", "")]
)
def test_a_question_is_answered_by_one_key(keys: str, answer: str) -> None:
    with keyboard() as (line, stream, pipe):
        line.pump = lambda: None  # type: ignore[method-assign]  # a pipe's descriptor is not the terminal's
        pipe.send_text(keys)  # type: ignore[attr-defined]
        assert line.choose("[d]rop or [s]um up?", "ds") == answer
        assert "[d]rop or [s]um up?" in stream.getvalue()


def test_what_was_typed_ahead_is_shown_as_letters() -> None:
    with keyboard() as (_, _, pipe):
        pipe.send_text("hellp\x7fo\x1b[A\r" + PASTE.format("a\rb") + "\x1bfx")  # type: ignore[attr-defined]
        keys = pipe.read_keys() + pipe.flush_keys()  # type: ignore[attr-defined]
    assert preview(keys) == "hello\na\rbx"


def test_what_was_typed_before_a_question_is_no_answer_to_it_and_not_lost() -> None:
    """A message typed ahead was thrown away when the window turned out to be full."""
    question = "Which of the two, for a question that is longer than the window is wide, do you mean?"
    with keyboard() as (line, stream, pipe):
        pipe.send_text("drop this\r")  # type: ignore[attr-defined]
        store_typeahead(pipe, pipe.read_keys())  # type: ignore[arg-type, attr-defined]

        def press() -> None:
            while "mean?" not in stream.getvalue():
                time.sleep(0.01)
            pipe.send_text("s")  # type: ignore[attr-defined]

        Thread(target=press, daemon=True).start()
        assert line.choose(question, "ds") == "s"
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
        assert "is wide, do you\r\nmean?" in shown
        assert line.read() == Typed("drop this")


def test_a_pasted_message_that_comes_back_is_still_a_pasted_one() -> None:
    """Report 122: sent again, its `@words` named files and its first line might have been a command."""
    text = "/system @notes\nof mine"
    with keyboard() as (line, _, pipe):
        for keys, draft in ((PASTE.format(text) + "\r", ""), ("\r", text), ("\x1b[A\r", "")):
            pipe.send_text(keys)  # type: ignore[attr-defined]
            assert line.read(draft) == Typed(text, pasted=True, plain=frozenset({"@notes"}))
