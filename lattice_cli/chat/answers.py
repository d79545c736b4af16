"""A question asked, its answer heard out and kept; what is done when the window is full.

Knows the talk, the exchange and the line; draws nothing itself.

Thread: any (the main thread, for signals)
"""

from __future__ import annotations

from collections.abc import Callable

from lattice_cli.chat.actions import Asking, Talk
from lattice_cli.chat.exchange import Exchange, Interrupts
from lattice_cli.chat.line import Line
from lattice_cli.chat.window import WindowFull
from lattice_cli.console import fail, say
from lattice_cli.errors import PromptTooLong

Begin = Callable[[], Asking]
OFFER = "[d]rop the oldest turns, [s]ummarise them, or Enter to stop?"


class Answers:
    """One answer after another."""

    def __init__(self, talk: Talk, exchange: Exchange, line: Line, interrupts: Interrupts) -> None:
        self._talk = talk
        self._exchange = exchange
        self._line = line
        self._interrupts = interrupts

    def hear(self, begin: Begin) -> bool:
        """Ask, show and keep. False: nothing was asked, because the window is full and the user wants it so; or nothing
        came but a failure, and the message is to be sent again.

        Raises: LatticeError where it cannot be asked.
        """
        self._interrupts.clear()
        wanted: Begin | None = begin
        while wanted is not None:
            try:
                return self._once(wanted)
            except WindowFull as full:
                wanted = self._offer(full)
        return False

    def _once(self, begin: Begin) -> bool:
        """One answer, partial or whole; False: a failure alone. Raises: WindowFull and what else asking and keeping
        raise.
        """
        asking = begin()
        try:
            completion = self._exchange.answer(asking)
        finally:
            if self._interrupts.count:
                self._line.discard()
        failed = completion.failed.error if completion.failed else None
        if failed is not None and not isinstance(failed, PromptTooLong):
            fail(failed)
        if note := self._talk.keep(asking, completion):
            say(note)
        return failed is None or bool(completion.answer or completion.reasoning)

    def _offer(self, full: WindowFull) -> Begin | None:
        """What the user wants done about a full window; None: nothing."""
        if not full.can_shorten:
            fail(full)
            return None
        say(full.message)
        match self._line.choose(OFFER, "ds"):
            case "d":
                return lambda: self._talk.drop_oldest(full)
            case "s":
                self._once(lambda: self._talk.summarise(full))
                return lambda: self._talk.again(full)
            case _:
                say("nothing was sent and nothing forgotten; /reset forgets it all")
                return None
