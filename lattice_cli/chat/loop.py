"""The REPL: read a line, do what it asks, until the user leaves.

Knows actions, the talk and the line; draws nothing itself. Talk goes to stderr.

Thread: any (the main thread, for signals)
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lattice_cli.chat.actions import Talk
from lattice_cli.chat.answers import Answers
from lattice_cli.chat.attach import with_files
from lattice_cli.chat.commands import Commands, Screen
from lattice_cli.chat.exchange import Exchange, Interrupts
from lattice_cli.chat.line import Line
from lattice_cli.chat.repl import Action, Ask, Do, Leave, Nothing, Unknown, read
from lattice_cli.console import fail, say
from lattice_cli.errors import LatticeError

TWICE_S = 3.0  # a second Ctrl-C within this time leaves


class Repl:
    """Messages and commands until the user leaves."""

    def __init__(
        self,
        talk: Talk,
        exchange: Exchange,
        line: Line,
        interrupts: Interrupts,
        screen: Screen,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._talk = talk
        self._answers = Answers(talk, exchange, line, interrupts)
        self._commands = Commands(talk, self._answers, line, screen)
        self._line = line
        self._interrupts = interrupts
        self._clock = clock
        self._interrupted_s: float | None = None
        self._draft = ""

    def run(self) -> None:
        """Read and do, until Ctrl-D, `/exit` or the second Ctrl-C."""
        self._line.offer(self._commands.words)
        self._commands.recall()
        while True:
            try:
                action = self._read()
            except EOFError:
                return
            except KeyboardInterrupt:
                if self._twice():
                    return
                say("Ctrl-C again, Ctrl-D or /exit leaves")
                continue
            if isinstance(action, Leave):
                return
            try:
                self._do(action)
            except LatticeError as error:
                fail(error)
            if self._interrupts.count > 1:
                return
            self._interrupted_s = self._clock() if self._interrupts.count else None
            self._interrupts.clear()

    def _read(self) -> Action:
        """Raises: EOFError, KeyboardInterrupt, the latter also for a Ctrl-C that came between two prompts."""
        if self._interrupts.count:
            raise KeyboardInterrupt
        draft = "" if self._line.ahead() else self._draft
        self._draft = ""
        return read(self._line.read(draft))

    def _twice(self) -> bool:
        now_s, before_s = self._clock(), self._interrupted_s
        self._interrupted_s = now_s
        self._interrupts.clear()
        return before_s is not None and now_s - before_s < TWICE_S

    def _do(self, action: Action) -> None:
        match action:
            case Ask(text, plain):
                self._ask(text, plain)
            case Do(name, rest):
                self._commands.do(name, rest)
            case Unknown(message, hint):
                fail(LatticeError(message, hint=hint))
            case Nothing() | Leave():
                return

    def _ask(self, text: str, plain: frozenset[str]) -> None:
        """A message that could not be sent comes back to the line, to be changed."""
        self._draft = text
        message, files = with_files(text, plain)
        for file in files:
            say(f"with `{file.name}`, {len(file.text):,} characters", aside=True)
        if self._answers.hear(lambda: self._talk.ask(message)):
            self._draft = ""
