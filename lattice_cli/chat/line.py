"""The input line: what the user types or pastes, one message at a time.

Knows keys, terminals and the history file; knows no commands. While a line is `held`, the terminal
echoes nothing and what is typed or pasted meanwhile waits for the next `read`: it never lands in an
answer, and never in the shell when the chat is over.

Thread: any
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.data_structures import Size
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.input.typeahead import clear_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout.processors import TabsProcessor
from prompt_toolkit.output.vt100 import Vt100_Output

from lattice_cli.chat.piped import decoded
from lattice_cli.chat.screen import terminal_size
from lattice_cli.console import is_live, is_terminal
from lattice_cli.harmless import harmless

SIGN = "> "
INDENT = " " * len(SIGN)  # goes on a message: easy to leave out of a copy
PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"
PASTE_GAP_S = 0.02
READS_A_PUMP = 256  # of 1 kB each


class Line(Protocol):
    """Where messages come from."""

    def read(self) -> str:
        """The next message. Raises: EOFError (Ctrl-D), KeyboardInterrupt (Ctrl-C on an empty line)."""

    def held(self) -> AbstractContextManager[None]:
        """Keep what is typed from now on for `read`; for as long as the chat lasts."""

    def pump(self) -> None:
        """Take in what was typed ahead; never blocks."""

    def discard(self) -> None:
        """Forget what was typed ahead."""


def open_line(history: Path) -> Line:
    """A line on stdin, which is a terminal. It is edited on stdout, or on stderr when answers go to a file."""
    for stream in (sys.stdout, sys.stderr):
        if is_live(stream):
            return EditedLine(create_input(sys.stdin), sys.stdin.fileno(), stream, private_history(history))
    return PlainLine(sys.stdin.fileno(), sys.stderr)


class _Forgiving(FileHistory):
    """A history that goes on when its file cannot be written any more."""

    def store_string(self, string: str) -> None:
        try:
            super().store_string(string)
        except OSError:
            return


def private_history(path: Path) -> History:
    """Earlier messages, in a file only its owner may read; in memory where there can be no such file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        path.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return _Forgiving(str(path))


class EditedLine:
    """prompt_toolkit's line: several rows, history, a pasted text is one message."""

    def __init__(self, keyboard: Input, fileno: int, stream: TextIO, history: History) -> None:
        self._input = keyboard
        self._fileno = fileno
        self._stream = stream
        # Without position reports: a terminal that leaves them unanswered would be told off on screen.
        output = Vt100_Output(stream, lambda: _size(stream), term=os.environ.get("TERM"), enable_cpr=False)
        self._session: PromptSession[str] = PromptSession(
            [("", "\n"), ("bold", SIGN)],
            erase_when_done=True,
            multiline=True,
            prompt_continuation=INDENT,
            key_bindings=_keys(),
            history=history,
            input=keyboard,
            output=output,
            input_processors=[TabsProcessor(char1=" ", char2=" ")],
            enable_suspend=True,
        )

    def read(self) -> str:
        try:
            text = self._session.prompt(handle_sigint=False)
        finally:
            self._write(PASTE_ON)
        shown = harmless(text.expandtabs(4)).replace("\n", "\n" + INDENT)
        self._write(f"\n\x1b[1m{SIGN}\x1b[0m{shown}\n")  # whole, however tall: the editor showed a window's worth
        return text

    @contextmanager
    def held(self) -> Iterator[None]:
        before = termios.tcgetattr(self._fileno)
        quiet = termios.tcgetattr(self._fileno)
        quiet[0] &= ~termios.ICRNL
        quiet[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
        quiet[3] |= termios.NOFLSH  # Ctrl-C in the middle of a paste must not swallow the mark that ends it
        quiet[6][termios.VMIN], quiet[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._fileno, termios.TCSANOW, quiet)
        self._write(PASTE_ON)
        try:
            yield
        finally:
            self._write(PASTE_OFF)
            termios.tcflush(self._fileno, termios.TCIFLUSH)
            termios.tcsetattr(self._fileno, termios.TCSANOW, before)

    def pump(self) -> None:
        for _ in range(READS_A_PUMP):
            if self._input.closed or not select.select([self._fileno], [], [], 0)[0]:
                return
            store_typeahead(self._input, self._input.read_keys())

    def discard(self) -> None:
        self.pump()
        clear_typeahead(self._input)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _size(stream: TextIO) -> Size:
    columns, rows = terminal_size(stream)
    return Size(rows=rows, columns=columns)


def _keys() -> KeyBindings:
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline()

    @keys.add("c-c", filter=typing)
    def _(event: KeyPressEvent) -> None:
        if not event.current_buffer.text:
            event.app.exit(exception=KeyboardInterrupt())
        event.current_buffer.reset()

    return keys


class PlainLine:
    """The terminal's own line, for `TERM=dumb`. Lines that arrive at once are one message."""

    def __init__(self, fileno: int, talk: TextIO | None) -> None:
        self._fileno = fileno
        self._talk = talk if is_terminal(talk) else None

    def read(self) -> str:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self._say(f"\n{SIGN}")
            data = os.read(self._fileno, 65536)
            while data and select.select([self._fileno], [], [], PASTE_GAP_S)[0]:
                more = os.read(self._fileno, 65536)
                if not more:
                    break
                data += more
        finally:
            signal.signal(signal.SIGINT, before)
        if not data:
            raise EOFError
        return decoded(data, "the line")

    def held(self) -> AbstractContextManager[None]:
        return nullcontext()

    def pump(self) -> None:
        """The terminal itself keeps what is typed ahead."""

    def discard(self) -> None:
        termios.tcflush(self._fileno, termios.TCIFLUSH)

    def _say(self, text: str) -> None:
        if self._talk is not None:
            self._talk.write(text)
            self._talk.flush()
