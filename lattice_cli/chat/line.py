"""The input line: where messages come from, one at a time.

Knows what a line can do and which one suits a terminal; knows no commands.

Thread: any
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from prompt_toolkit.input import create_input

from lattice_cli.chat.complete import Words
from lattice_cli.chat.edited_line import EditedLine
from lattice_cli.chat.history import private_history
from lattice_cli.chat.plain_line import PlainLine
from lattice_cli.chat.typed import Typed
from lattice_cli.console import is_live


class Line(Protocol):
    """Where messages come from."""

    def read(self, draft: str = "") -> Typed:
        """The next message, begun with `draft`.

        Raises: EOFError (Ctrl-D), KeyboardInterrupt (Ctrl-C on an empty line).
        """

    def choose(self, question: str, keys: str) -> str:
        """One of `keys`, pressed in answer to a question; "" for any other.

        What was typed before is no answer, and is on the line afterwards.
        """

    def held(self) -> AbstractContextManager[None]:
        """Keep what is typed from now on for `read`; for as long as the chat lasts."""

    def lent(self) -> AbstractContextManager[None]:
        """Another program has the terminal, as a shell would give it."""

    def pump(self) -> None:
        """Take in what was typed ahead; never blocks."""

    def ahead(self) -> str:
        """What was typed ahead, as far as letters go."""

    def discard(self) -> None:
        """Forget what was typed ahead."""

    def offer(self, words: Words) -> None:
        """What may stand behind a command's name."""


def open_line(history: Path | None) -> Line:
    """A line on stdin, which is a terminal; `history` None keeps no message beyond this chat.

    It is edited on stdout, or on stderr when answers go to a file.
    """
    for stream in (sys.stdout, sys.stderr):
        if is_live(stream):
            return EditedLine(create_input(sys.stdin), sys.stdin.fileno(), stream, private_history(history))
    return PlainLine(sys.stdin.fileno(), sys.stderr)
