"""Every command of the table does something, and what it shows.

Thread: any
"""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.chat.clipboard import MOST_BYTES, copied
from lattice_cli.chat.commands import Commands
from lattice_cli.chat.editor import edited
from lattice_cli.chat.export import FileThere
from lattice_cli.chat.repl import COMMANDS
from lattice_cli.chat.session import Session
from lattice_cli.errors import UsageError

pytestmark = pytest.mark.pure

ROWS = {"models": ["bot", "other"], "settings": [("top_k", "50"), ("seed", "random")], "stats": [("answers", "1")]}


class Noted:
    """Stands for the talk, the answers, the line and the screen at once, and notes what was asked of it."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[str] = []
        self.session = Session().asked("Hi").answered("Hello **there**")
        self._answers = {
            "hear": True,
            "unfold": True,
            "tokens": (None, None, "3 of 9 tokens"),
            "sessions": [("1", "", "Hi", "1", "now")],
            "copy_text": "text",
            "choose": "",
            **ROWS,
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        def call(*given: object, **more: object) -> Any:
            self.calls.append(" ".join([name, *(str(one) for one in given if isinstance(one, str)), *more]))
            answer = self._answers.get(name, f"{name} done")
            if isinstance(answer, Exception) and not more:
                raise answer
            return answer

        return call


def commands(**answers: Any) -> tuple[Commands, Noted]:
    noted = Noted(**answers)
    return Commands(noted, noted, noted, noted), noted  # type: ignore[arg-type]


def done(name: str, rest: str = "", **answers: Any) -> list[str]:
    """What was asked of talk, answers, line and screen."""
    made, noted = commands(**answers)
    made.do(name, rest)
    return noted.calls


@pytest.mark.parametrize(
    ("name", "rest", "calls"),
    [
        ("help", "", []),
        ("reset", "", ["reset"]),
        ("undo", "", ["undo"]),
        ("redo", "", ["redo"]),
        ("retry", "0.2", ["hear"]),
        ("continue", "", ["hear"]),
        ("system", "Be brief.", ["system Be brief."]),
        ("set", "", ["settings"]),
        ("set", "top-k", ["settings"]),
        ("set", "stop  one two", ["set stop one two"]),
        ("think", "", ["think ", "unfold"]),
        ("think", "hide", ["think hide"]),
        ("model", "", ["models"]),
        ("model", "other", ["model other"]),
        ("save", "", ["save "]),
        ("load", "2", ["load 2", "recall Hello **there**"]),
        ("sessions", "", ["sessions"]),
        ("export", "no/such/talk.md", ["export no/such/talk.md"]),
        ("stats", "", ["stats"]),
        ("tokens", "", ["tokens"]),
    ],
)
def test_a_command_asks_what_it_should_of_the_talk(name: str, rest: str, calls: list[str]) -> None:
    assert done(name, rest) == calls


def test_every_command_of_the_table_is_known() -> None:
    for command in COMMANDS:
        if command.names[0] not in ("/exit", "/edit", "/copy"):
            done(command.names[0][1:], "1" if command.takes == "text" else "")


def test_retry_hands_on_its_temperature() -> None:
    made, noted = commands()
    noted._answers["hear"] = None
    made._answers = type("Heard", (), {"hear": staticmethod(lambda begin: begin())})()  # type: ignore[assignment]
    made.do("retry", "0.2")
    made.do("continue", "")
    assert noted.calls == ["retry 0.2", "continue_"]


def test_a_file_that_is_there_is_replaced_only_when_that_is_wanted() -> None:
    there = FileThere("`talk.md` is there already")
    first = ["export talk.md", "choose `talk.md` is there already: replace it? [y/N] y"]
    assert done("export", "talk.md", export=there) == first
    assert done("export", "talk.md", export=there, choose="y") == [*first, "export talk.md replace"]


def test_nothing_is_asked_about_a_file_that_could_not_be_written_anyway() -> None:
    """`/export folder` asked whether to replace the folder, and the key that answered was lost to the next message."""
    made, noted = commands(export=UsageError("`exp` is a folder"))
    with pytest.raises(UsageError, match="is a folder"):
        made.do("export", "exp")
    assert noted.calls == ["export exp"]


def test_an_unknown_setting_is_told_and_none_is_changed() -> None:
    with pytest.raises(UsageError, match="there is no setting `topk`") as error:
        done("set", "topk")
    assert error.value.hint is not None and error.value.hint.startswith("did you mean `top_k`? ")


def test_a_setting_is_shown_however_its_name_is_typed() -> None:
    """`/set TOP_K 5` was taken, and `/set TOP_K` was no setting."""
    assert done("set", "TOP-K") == done("set", "top_k") == ["settings"]


def test_what_may_stand_behind_a_command() -> None:
    made, _ = commands()
    assert [word for word, _ in made.words("think")] == ["show", "hide", "off"]
    assert list(made.words("set")) == ROWS["settings"]
    assert list(made.words("model")) == [("bot", ""), ("other", "")]
    assert list(made.words("load")) == [("1", "Hi")]
    assert list(made.words("undo")) == []


# The clipboard.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_answer_goes_to_the_terminals_clipboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    assert copied("Ä😀", stream, {}) == "copied 2 characters, where the terminal allows that"
    assert stream.getvalue() == f"\x1b]52;c;{base64.b64encode('Ä😀'.encode()).decode()}\x07"
    assert "set-clipboard" in copied("a", Terminal(), {"TMUX": "x"})


def test_what_no_terminal_would_take_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminals drop a sequence that is too long, without a word."""
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with pytest.raises(UsageError, match="has 74,995 bytes, and terminals take 74,994"):
        copied("x" * (MOST_BYTES + 1), stream)
    with pytest.raises(UsageError, match="no terminal here"):
        copied("x", io.StringIO())
    assert stream.getvalue() == ""


# The editor.


def test_a_text_is_changed_in_the_editor_the_user_named(tmp_path: Path) -> None:
    editor = tmp_path / "my editor"
    editor.write_text('#!/bin/sh\ncat "$2" > "$2.new"; echo "and $1" >> "$2.new"; mv "$2.new" "$2"\n')
    editor.chmod(0o700)
    assert edited("Hi\n", {"EDITOR": f"'{editor}' more", "VISUAL": ""}) == "Hi\nand more"
    assert edited("Hi", {"VISUAL": "true", "EDITOR": "false"}) == "Hi"


@pytest.mark.parametrize(
    ("editor", "sentence"),
    [
        ("false", "the editor `false` ended with status 1, so nothing was changed"),
        ("vi '", "`$EDITOR` cannot be read as a command: No closing quotation"),
        ("no-such-editor -w", "the editor `no-such-editor` cannot be run: No such file or directory"),
    ],
)
def test_an_editor_that_fails_changes_nothing(editor: str, sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        edited("Hi", {"EDITOR": editor})
    assert raised.value.message == sentence
