"""Talk: one chat as it stands, with a method for everything that a command does to it.

Knows the conversation, the manner of answering, the partner and the store; prints nothing and knows no terminal.
What a method returns is a sentence to show, rows of (name, value), or an Asking that somebody must hear out:

    asking = talk.ask(text)                # WindowFull: nothing was sent; offer drop, summarise or stop
    completion = exchange.answer(asking)   # shows it as it comes, Ctrl-C ends it
    note = talk.keep(asking, completion)   # saves it; a sentence where something must be said

Bad input is a LatticeError with a sentence and a hint, and changes nothing.

Thread: any (one at a time)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lattice_cli.chat.partner import Count, Partner, Thinking
from lattice_cli.chat.session import Session
from lattice_cli.engine.completion import Completion
from lattice_cli.engine.worker import Ticket
from lattice_cli.errors import PromptTooLong

Rows = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Asking:
    """An answer under way. `before` is the session if nothing comes of it, `asked` the one that is being answered;
    `note` is what must be said before it (turns that were dropped). `prefix` is the answer that is gone on with.
    """

    ticket: Ticket
    before: Session
    asked: Session
    note: str | None = None
    prefix: str = ""
    summarises: int = 0


class WindowFull(PromptTooLong):
    """The next prompt and room for an answer do not fit the window. Nothing was sent, nothing was lost.

    The message has the numbers. Offer: `talk.drop_oldest(full)`; `talk.summarise(full)`, and when that was kept
    `talk.again(full)`; or nothing. `can_shorten` False: there are no older turns, and only a shorter message helps.
    """

    can_shorten: bool


class Talk:
    """A chat. Owns its session."""

    session: Session
    partner: Partner
    thinking: Thinking

    # Answers. Each gives an Asking, or raises WindowFull, BadRequest, EngineUnavailable; UsageError where there is
    # nothing to do it with.

    def ask(self, text: str) -> Asking:
        """Ask a new message."""
        raise NotImplementedError

    def retry(self, temperature: str | None = None) -> Asking:
        """The last message again, once with another temperature where one is given (as typed)."""
        raise NotImplementedError

    def last_message(self) -> str:
        """The last message of the user, for an editor. Raises: UsageError where there is none."""
        raise NotImplementedError

    def edit(self, text: str) -> Asking:
        """The last message replaced by `text`, and answered anew."""
        raise NotImplementedError

    def continue_(self) -> Asking:
        """Go on with the last answer, where it was cut or stopped. Show only what comes: the rest was shown."""
        raise NotImplementedError

    def keep(self, asking: Asking, completion: Completion) -> str | None:
        """Take an answer in, whole or partial, and save it; a sentence where something must be said.

        Raises: WindowFull where a server refused the prompt as too long.
        """
        raise NotImplementedError

    # A full window.

    def drop_oldest(self, full: WindowFull) -> Asking:
        """Forget the oldest turns, as many as must go, and ask; `note` says how many went."""
        raise NotImplementedError

    def summarise(self, full: WindowFull) -> Asking:
        """Have the model sum up the oldest turns; `keep` puts the summary in their place. Then `again`."""
        raise NotImplementedError

    def again(self, full: WindowFull) -> Asking:
        """What was to be asked when the window was full."""
        raise NotImplementedError

    # The conversation. Sentences.

    def reset(self) -> str:
        """Forget the conversation; the system prompt stays. What was saved stays saved, and a new session begins."""
        raise NotImplementedError

    def undo(self) -> str:
        """Take back the last message and its answer."""
        raise NotImplementedError

    def redo(self) -> str:
        """Bring back what `undo` took."""
        raise NotImplementedError

    def system(self, text: str | None = None) -> str:
        """Show, set or ("-") take away the system prompt."""
        raise NotImplementedError

    # How it answers.

    def set(self, name: str, value: str) -> str:
        """One setting, as typed; "-" takes it away. Raises: UsageError in the words of the server."""
        raise NotImplementedError

    def settings(self) -> Rows:
        """Every setting with its value, and where the value comes from."""
        raise NotImplementedError

    def think(self, mode: str = "") -> str:
        """ "show", "hide" or "off"; nothing: say which."""
        raise NotImplementedError

    def models(self) -> Rows:
        """The models that `model` can take."""
        raise NotImplementedError

    def model(self, name: str) -> str:
        """Another model; the talk stays. Blocks for as long as loading takes. A failure keeps the old one."""
        raise NotImplementedError

    # Sessions and files.

    def save(self, name: str = "") -> str:
        """Save under a name; with `--no-save` it is saved from here on."""
        raise NotImplementedError

    def load(self, name: str) -> str:
        """Another session, by its name or number. Show `session.turns` afterwards, if you like."""
        raise NotImplementedError

    def sessions(self) -> Sequence[tuple[str, str, str, str]]:
        """Number, name, title and age of each, the latest first."""
        raise NotImplementedError

    def export(self, path: str, *, replace: bool = False) -> str:
        """Write the talk to a `.md` or `.json` file. Raises: UsageError where the file is there and `replace` is False."""
        raise NotImplementedError

    def copy_text(self) -> str:
        """The last answer, for the clipboard. Raises: UsageError where there is none."""
        raise NotImplementedError

    def stats(self) -> Rows:
        """What this chat has cost so far."""
        raise NotImplementedError

    def tokens(self) -> tuple[Count, int | None, str]:
        """Tokens of the next prompt so far, the window (None: not known), and both as a sentence."""
        raise NotImplementedError
