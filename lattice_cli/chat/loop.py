"""The REPL: read a line, do what it asks, until the user leaves.

Knows actions, the session and the exchange; draws nothing itself. Talk goes to stderr.

Thread: any (the main thread, for signals)
"""

from __future__ import annotations

from lattice_cli.chat.exchange import Exchange, Interrupts, counted
from lattice_cli.chat.line import Line
from lattice_cli.chat.repl import (
    Action,
    Ask,
    Help,
    Leave,
    Nothing,
    Reset,
    SetSystem,
    ShowSystem,
    Unknown,
    help_lines,
    read,
)
from lattice_cli.chat.session import Session
from lattice_cli.console import fail, say
from lattice_cli.errors import LatticeError, PromptTooLong


class Repl:
    """Messages and commands until the user leaves. Owns the session."""

    def __init__(self, exchange: Exchange, line: Line, interrupts: Interrupts, session: Session) -> None:
        self._exchange = exchange
        self._line = line
        self._interrupts = interrupts
        self._session = session

    def run(self) -> None:
        """Read and do, until Ctrl-D or `/exit`."""
        while True:
            try:
                action = read(self._line.read())
            except EOFError:
                return
            except KeyboardInterrupt:
                say("Ctrl-D or /exit leaves")
                continue
            if isinstance(action, Leave):
                return
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Ask(text):
                self._ask(text)
            case Help():
                for row in help_lines():
                    say(row)
            case Reset():
                self._reset()
            case ShowSystem():
                say(f"system prompt: {self._session.system}" if self._session.system else "there is no system prompt")
            case SetSystem(text):
                self._session = self._session.told(text)
                say(f"system prompt {'set' if text else 'taken away'}, from the next message on; /reset starts afresh")
            case Unknown(message, hint):
                fail(LatticeError(message, hint=hint))
            case Nothing() | Leave():
                return

    def _ask(self, text: str) -> None:
        """Ask and keep what was answered, partial or not. A message without any answer is not kept."""
        asked = self._session.asked(text)
        self._interrupts.clear()
        try:
            completion = self._exchange.answer(asked)
        except PromptTooLong as error:
            fail(PromptTooLong(error.message, hint="send a shorter message, or forget the conversation with `/reset`"))
            return
        except LatticeError as error:
            fail(error)
            return
        finally:
            if self._interrupts.count:
                self._line.discard()
        if completion.failed is not None:
            fail(completion.failed.error)
        if completion.answer.strip():
            self._session = asked.answered(completion.answer)
        elif completion.failed is None:
            say("there was no answer, so your message is not kept (Up brings it back)")

    def _reset(self) -> None:
        count = counted(self._session.questions, "message")
        kept = (
            "system prompt, screen and input history stay" if self._session.system else "screen and input history stay"
        )
        self._session = self._session.reset()
        say(f"forgotten: {count} and the answers; {kept}")
