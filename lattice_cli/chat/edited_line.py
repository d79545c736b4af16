"""prompt_toolkit's line: several rows, history, a menu; a pasted text is one message.

While it is `held`, the terminal echoes nothing and what is typed or pasted meanwhile waits for the next `read`: it
never lands in an answer, and never in the shell when the chat is over.

Thread: any
"""

from __future__ import annotations

import os
import select
import signal
import termios
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import clear_typeahead, get_typeahead, store_typeahead
from prompt_toolkit.layout.processors import TabsProcessor
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output

from lattice_cli.chat.ahead import preview
from lattice_cli.chat.choice import choice
from lattice_cli.chat.complete import MENU_STYLE, Offers, Words, wanted
from lattice_cli.chat.keys import HarmlessProcessor, Pastes, line_keys
from lattice_cli.chat.plain_line import SIGN
from lattice_cli.chat.screen import terminal_size
from lattice_cli.chat.typed import Typed
from lattice_cli.chat.wrap import cells
from lattice_cli.console import ERASE, SHOW, say, suspendable, write_at_once
from lattice_cli.harmless import harmless

INDENT = " " * len(SIGN)  # goes on a message: easy to leave out of a copy
PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"
READS_A_PUMP = 256  # of 1 kB each
MENU_ROWS = 9
ROOM_ROWS = 9  # above a message that comes back: why it does


class EditedLine:
    """A `Line` (line.py) in a terminal that can redraw."""

    def __init__(self, keyboard: Input, fileno: int, stream: TextIO, history: History) -> None:
        self._input = keyboard
        self._fileno = fileno
        self._stream = stream
        self._pastes = Pastes()
        self._offers = Offers()
        # Without position reports: a terminal that leaves them unanswered would be told off on screen.
        self._output = Vt100_Output(
            stream,
            lambda: _size(stream),
            term=os.environ.get("TERM"),
            default_color_depth=ColorDepth.from_env(),  # NO_COLOR
            enable_cpr=False,
        )
        self._session: PromptSession[str] = PromptSession(
            [("", "\n"), ("bold", SIGN)],
            erase_when_done=True,
            multiline=True,
            prompt_continuation=INDENT,
            key_bindings=line_keys(self._pastes),
            history=history,
            input=keyboard,
            output=self._output,
            input_processors=[TabsProcessor(char1=" ", char2=" "), HarmlessProcessor()],
            enable_suspend=True,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            style=MENU_STYLE,
            completer=self._offers,
            complete_while_typing=Condition(lambda: wanted(get_app().current_buffer.document)),
            reserve_space_for_menu=MENU_ROWS,
        )

    def read(self, draft: str = "") -> Typed:
        self._pastes.clear()
        rows = _size(self._stream).rows
        if self._rows(draft) > max(rows - ROOM_ROWS, rows // 3, 1):
            say("the message is too long to stand on the line again; Up brings it back")
            draft = ""
        try:
            text = self._session.prompt(default=draft, handle_sigint=False)
        finally:
            self._write(PASTE_ON)
        shown = harmless(text.expandtabs(4)).replace("\n", "\n" + INDENT)
        self._write(f"\n\x1b[1m{SIGN}\x1b[0m{shown}\n")  # whole, however tall: the editor showed a window's worth
        return self._pastes.typed(text)

    def _rows(self, text: str) -> int:
        width = max(1, _size(self._stream).columns - len(SIGN))
        return sum(1 + cells(line) // width for line in text.expandtabs(4).split("\n"))

    def choose(self, question: str, keys: str) -> str:
        self.pump()
        before = get_typeahead(self._input)  # takes it out: it is no answer, and is on the line afterwards
        width = _size(self._stream).columns - 1
        rows = textwrap.wrap(question, width, break_long_words=False, break_on_hyphens=False)
        try:
            return choice("\n".join(rows), keys, self._input, self._output)
        finally:
            store_typeahead(self._input, [*before, *get_typeahead(self._input)])
            self._write(PASTE_ON)

    @contextmanager
    def held(self) -> Iterator[None]:
        self._before = termios.tcgetattr(self._fileno)
        self._hold()
        before = signal.signal(signal.SIGCONT, lambda signum, frame: self._hold())  # a shell had the terminal
        try:
            with suspendable(self._release, self._hold):
                yield
        finally:
            signal.signal(signal.SIGCONT, before)
            self._write(PASTE_OFF)
            termios.tcflush(self._fileno, termios.TCIFLUSH)
            termios.tcsetattr(self._fileno, termios.TCSANOW, self._before)

    @contextmanager
    def lent(self) -> Iterator[None]:
        before = [(number, signal.signal(number, signal.SIG_DFL)) for number in (signal.SIGCONT, signal.SIGTSTP)]
        self._write(PASTE_OFF)
        termios.tcsetattr(self._fileno, termios.TCSANOW, self._before)
        try:
            yield
        finally:
            for number, handler in before:
                signal.signal(number, handler)
            self._hold()

    def pump(self) -> None:
        for _ in range(READS_A_PUMP):
            if self._input.closed or not select.select([self._fileno], [], [], 0)[0]:
                return
            store_typeahead(self._input, self._input.read_keys())

    def ahead(self) -> str:
        keys = get_typeahead(self._input)  # takes them out
        store_typeahead(self._input, keys)
        return preview(keys)

    def discard(self) -> None:
        self.pump()
        clear_typeahead(self._input)

    def offer(self, words: Words) -> None:
        self._offers.words = words

    def _release(self) -> None:
        """The terminal as it was, the cursor shown, where a shell goes on: an answer's live rows are drawn again."""
        write_at_once(self._stream, ERASE + SHOW + PASTE_OFF)
        termios.tcsetattr(self._fileno, termios.TCSANOW, self._before)

    def _hold(self) -> None:
        quiet = termios.tcgetattr(self._fileno)
        quiet[0] &= ~termios.ICRNL
        quiet[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
        quiet[3] |= termios.NOFLSH  # Ctrl-C in the middle of a paste must not swallow the mark that ends it
        quiet[6][termios.VMIN], quiet[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._fileno, termios.TCSANOW, quiet)
        self._write(PASTE_ON)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _size(stream: TextIO) -> Size:
    columns, rows = terminal_size(stream)
    return Size(rows=rows, columns=columns)
