"""The slash commands: what each shows, and which method of Talk does it.

Knows the talk and the line; the table of their names is repl.py's.

Thread: any (the main thread, for signals)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Protocol

from lattice_cli.chat.actions import Talk
from lattice_cli.chat.answers import Answers
from lattice_cli.chat.clipboard import copied
from lattice_cli.chat.editor import edited
from lattice_cli.chat.export import FileThere
from lattice_cli.chat.help import aligned, help_lines
from lattice_cli.chat.line import Line
from lattice_cli.chat.manner import setting
from lattice_cli.chat.screen import terminal_size
from lattice_cli.console import is_terminal, say, status, table

SESSION_COLUMNS = ("number", "name", "title", "messages", "age")
GLIMPSE = 200  # characters of a question that is shown again


class Screen(Protocol):
    """Where texts of the conversation are shown again."""

    def unfold(self) -> bool:
        """Show the last thought whole. False: there is none."""

    def recall(self, text: str) -> None:
        """Show an answer that was given before."""


class Commands:
    """Every command but those that ask nothing of the talk."""

    def __init__(self, talk: Talk, answers: Answers, line: Line, screen: Screen) -> None:
        self._talk = talk
        self._answers = answers
        self._line = line
        self._screen = screen

    def do(self, name: str, rest: str) -> None:
        """Run a command by its first name. Raises: LatticeError with what is wrong; nothing changed then."""
        talk = self._talk
        match name:
            case "help":
                _rows(help_lines(_width()))
            case "reset":
                say(talk.reset())
            case "undo":
                say(talk.undo())
            case "redo":
                say(talk.redo())
            case "retry":
                self._answers.hear(lambda: talk.retry(rest or None))
            case "edit":
                self._edit()
            case "continue":
                self._answers.hear(talk.continue_)
            case "system":
                say(talk.system(rest))
            case "set":
                self._set(rest)
            case "think":
                self._think(rest)
            case "model":
                self._model(rest)
            case "save":
                say(talk.save(rest))
            case "load":
                say(talk.load(rest))
                self.recall()
            case "sessions":
                self._sessions()
            case "export":
                self._export(rest)
            case "copy":
                say(copied(talk.copy_text(), sys.stdout if is_terminal(sys.stdout) else sys.stderr))
            case "stats":
                _rows(aligned(list(talk.stats()), _width()))
            case "tokens":
                say(talk.tokens()[2])
            case _:
                raise AssertionError(f"a command of the table that nothing does: {name}")

    def words(self, name: str) -> Iterable[tuple[str, str]]:
        """What may stand behind a command, with a word of help."""
        match name:
            case "think":
                return [("show", "thoughts, folded when done"), ("hide", "only how long they take"), ("off", "none")]
            case "set":
                return self._talk.settings()
            case "model":
                return [(model, "") for model in self._talk.models()]
            case "load":
                return [(row[1] or row[0], row[2]) for row in self._talk.sessions()]
            case _:
                return ()

    def recall(self) -> None:
        """The last question and answer of a conversation that goes on."""
        session = self._talk.session
        if session.last_question is None:
            return
        question = " ".join(session.last_question.split())
        say(f"> {question if len(question) <= GLIMPSE else question[:GLIMPSE] + ' ...'}", aside=True)
        if session.last_answer is not None:
            self._screen.recall(session.last_answer.text)

    def _edit(self) -> None:
        before = self._talk.last_message()
        with self._line.lent():
            text = edited(before)
        if text == before:
            say("nothing was changed, so nothing is asked; /retry asks it again")
            return
        say(f"asked anew: {text.strip().partition(chr(10))[0][:GLIMPSE]}", aside=True)
        self._answers.hear(lambda: self._talk.edit(text))

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        if value.strip():
            say(self._talk.set(name, value.strip()))
            return
        known = setting(name) if name else None
        _rows(aligned([row for row in self._talk.settings() if known in (None, row[0])], _width()))

    def _think(self, mode: str) -> None:
        say(self._talk.think(mode))
        if not mode:
            self._screen.unfold()

    def _model(self, name: str) -> None:
        if not name:
            _rows(self._talk.models())
            return
        with status(f"loading {name}"):
            said = self._talk.model(name)
        say(said)

    def _sessions(self) -> None:
        rows = self._talk.sessions()
        if not rows:
            say("nothing is saved yet")
            return
        table(SESSION_COLUMNS, rows, file=sys.stderr)

    def _export(self, path: str) -> None:
        try:
            said = self._talk.export(path)
        except FileThere as error:
            if self._line.choose(f"{error.message}: replace it? [y/N]", "y") != "y":
                say("nothing was written")
                return
            said = self._talk.export(path, replace=True)
        say(said)


def _rows(rows: Iterable[str]) -> None:
    for row in rows:
        say(row)


def _width() -> int:
    return terminal_size(sys.stderr)[0] if is_terminal(sys.stderr) else 80
