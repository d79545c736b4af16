"""What the menu offers.

Thread: any
"""

from __future__ import annotations

from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from lattice_cli.chat.complete import Offers, file_word, wanted
from lattice_cli.chat.repl import COMMANDS
from lattice_cli.errors import StoreFailed

pytestmark = pytest.mark.pure


def offered(text: str, offers: Offers | None = None) -> list[tuple[str, str]]:
    """The text after each offer is taken, and its help."""
    found = (offers or Offers()).get_completions(Document(text), CompleteEvent())
    return [(text[: len(text) + item.start_position] + item.text, item.display_meta_text) for item in found]


def test_a_slash_offers_every_command_with_its_help() -> None:
    found = offered("/")
    assert [name for name, _ in found] == [command.names[0] for command in COMMANDS]
    assert dict(found)["/undo"] == "take back the last message and its answer"
    assert dict(found)["/export"] == "write the conversation to a .md or .json file"


@pytest.mark.parametrize(("begun", "names"), [("/se", ["/set", "/sessions"]), ("/QU", ["/quit"]), ("/zz", [])])
def test_letters_choose_among_them(begun: str, names: list[str]) -> None:
    assert [name for name, _ in offered(begun)] == names


@pytest.mark.parametrize("text", ["hello /", "/etc/", " /", "two\n/", "/help me"])
def test_nothing_is_offered_where_no_command_can_be(text: str) -> None:
    assert offered(text) == []


def test_what_stands_behind_a_command_is_offered_too() -> None:
    offers = Offers()
    offers.words = lambda name: [("show", "a"), ("hide", "b")] if name == "think" else [("x", "")]
    assert offered("/think ", offers) == [("/think show", "a"), ("/think hide", "b")]
    assert offered("/think h", offers) == [("/think hide", "b")]
    assert offered("/undo ", offers) == []


def test_a_name_with_an_escape_sequence_reaches_the_menu_harmless() -> None:
    offers = Offers()
    offers.words = lambda name: [("a\x1b[2J", "b\x1b]0;x\x07")]
    (item,) = offers.get_completions(Document("/load "), CompleteEvent())
    assert "\x1b" not in item.display_text + item.display_meta_text


def test_paths_are_offered_behind_an_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("notes.txt", "my notes.md", ".hidden", "sub/deep.py", "bad\x1b[2J"):
        (tmp_path / name).touch()
    assert [text for text, _ in offered("see @")] == [r"see @my\ notes.md", "see @notes.txt", "see @sub/"]
    assert [text for text, _ in offered("see @sub/")] == ["see @sub/deep.py"]
    assert [text for text, _ in offered(r"see @my\ n")] == [r"see @my\ notes.md"]
    assert [text for text, _ in offered('see @"my n')] == ['see @"my notes.md']
    assert [text for text, _ in offered("@.h")] == ["@.hidden"]
    assert offered("@nowhere/") == []
    assert [text for text, _ in offered("/export no")] == ["/export notes.txt"]


@pytest.mark.parametrize(
    ("text", "word"),
    [("@", ""), ("a @b/c", "b/c"), ("a@b", None), ("@a b", None), ("@a\n@b", "b"), ('@"a b', '"a b'), ('@"a" b', None)],
)
def test_the_path_that_is_being_typed(text: str, word: str | None) -> None:
    assert file_word(text) == word


def test_the_menu_comes_by_itself_only_for_these() -> None:
    """Below a prompt that needs no menu there are no rows kept free for one."""
    assert [wanted(Document(text)) for text in ("/", "/th", "/think ", "x @a", "hello", "")] == [True] * 4 + [False] * 2


def test_sessions_that_cannot_be_read_are_not_offered() -> None:
    """With a home that could not be written, a space behind `/load` covered the screen with a traceback."""

    def broken(name: str) -> list[tuple[str, str]]:
        raise StoreFailed("the sessions cannot be read")

    offers = Offers()
    offers.words = broken
    assert offered("/load ", offers) == []
