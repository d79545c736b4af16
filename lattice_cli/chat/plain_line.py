"""The terminal's own line, for `TERM=dumb`.

Thread: any
"""

from __future__ import annotations

import os
import select
import signal
import termios
from contextlib import AbstractContextManager, nullcontext
from typing import TextIO

from lattice_cli.chat.complete import Words
from lattice_cli.chat.piped import decoded
from lattice_cli.chat.typed import Typed, block_open
from lattice_cli.console import is_terminal

SIGN = "> "
PASTE_GAP_S = 0.02
READ_BYTES = 65536


class PlainLine:
    """Lines that arrive at once are one message."""

    def __init__(self, fileno: int, talk: TextIO | None) -> None:
        self._fileno = fileno
        self._talk = talk if is_terminal(talk) else None

    def read(self, draft: str = "") -> Typed:
        text = self._lines(f"\n{SIGN}")
        while block_open(text):
            more = self._lines("")
            if not more:
                break
            text += more
        if not text:
            raise EOFError
        return Typed(text, pasted="\n" in text.rstrip("\n") and not block_open(text[:3]))

    def choose(self, question: str, keys: str) -> str:
        self.discard()
        answer = self._lines(f"{question} ").strip().lower()[:1]
        return answer if answer in keys else ""

    def held(self) -> AbstractContextManager[None]:
        return nullcontext()

    def lent(self) -> AbstractContextManager[None]:
        return nullcontext()

    def pump(self) -> None:
        """The terminal itself keeps what is typed ahead."""

    def ahead(self) -> str:
        return ""

    def discard(self) -> None:
        termios.tcflush(self._fileno, termios.TCIFLUSH)

    def offer(self, words: Words) -> None:
        """There is no menu."""

    def _lines(self, prompt: str) -> str:
        """Raises: KeyboardInterrupt, from the prompt on."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self._say(prompt)
            data = os.read(self._fileno, READ_BYTES)
            while data and select.select([self._fileno], [], [], PASTE_GAP_S)[0]:
                more = os.read(self._fileno, READ_BYTES)
                if not more:
                    break
                data += more
        except KeyboardInterrupt:
            self._say("\n")  # what is said next does not stand behind `^C`
            raise
        finally:
            signal.signal(signal.SIGINT, before)
        if not data:
            self._say("\n")
        return decoded(data, "the line")

    def _say(self, text: str) -> None:
        if self._talk is not None:
            self._talk.write(text)
            self._talk.flush()
