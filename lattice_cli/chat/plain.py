"""Events in, text out as it comes: the view for files, pipes and dumb terminals.

Knows streams; knows no Markdown and writes no escape sequences to what is no terminal.

Thread: any
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from lattice_cli.console import is_live, is_terminal
from lattice_cli.events import Event, Piece
from lattice_cli.harmless import harmless
from lattice_cli.job import Channel

if TYPE_CHECKING:
    from lattice_cli.chat.partner import Thinking


class PlainView:
    """Answers as they come on `stream`, each without line breaks round it and with one at its end.

    Thoughts go to `talk`, where that is a terminal and `thinking` says so. A terminal is given no control characters; a
    file or a pipe gets the exact text.
    """

    def __init__(self, stream: TextIO, talk: TextIO | None, thinking: Callable[[], Thinking] = lambda: "show") -> None:
        self._stream = stream
        self._thinking = thinking
        self._talk = talk if is_terminal(talk) else None
        self._clean = is_terminal(stream)
        self.begin()

    def begin(self) -> None:
        """A new answer."""
        self._held = ""
        self._any = False
        self._channel: Channel | None = None

    def show(self, event: Event) -> None:
        """Write the text of a piece at once."""
        if not isinstance(event, Piece):
            return
        if event.channel is Channel.ANSWER:
            self._answer(event.text)
        elif self._talk is not None and self._thinking() == "show":
            self._think(event.text, self._talk)
        else:
            return
        self._channel = event.channel

    def tick(self) -> None:
        """Nothing to redraw."""

    def again(self) -> None:
        """Nothing to redraw."""

    def end(self) -> None:
        """One line break, whatever the answer ended with."""
        if self._channel is Channel.REASONING:
            self._end_thought()
        self._stream.write("\n")
        self._stream.flush()

    def unfold(self) -> bool:
        """Thoughts were shown whole as they came."""
        return False

    def recall(self, text: str) -> None:
        """Show an answer that was given before, where that is not what a file is to hold."""
        if self._clean:
            self._stream.write(harmless(text) + "\n")
            self._stream.flush()

    def _answer(self, text: str) -> None:
        if self._channel is Channel.REASONING:
            self._end_thought()
        text = self._held + text
        if not self._any:
            text = text.lstrip("\r\n")
        body = text.rstrip("\r\n")
        self._held = text[len(body) :]
        if body:
            self._any = True
            self._stream.write(harmless(body) if self._clean else body)
            self._stream.flush()

    def _think(self, text: str, talk: TextIO) -> None:
        if self._channel is not Channel.REASONING and is_live(talk):
            talk.write("\x1b[2m")
        talk.write(harmless(text))
        talk.flush()

    def _end_thought(self) -> None:
        if self._talk is not None:
            self._talk.write("\x1b[0m\n\n" if is_live(self._talk) else "\n\n")
            self._talk.flush()
