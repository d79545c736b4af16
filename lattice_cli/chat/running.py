"""A whole `lattice chat`: open the session and whoever answers, talk, close everything again.

Thread: any (the main thread, for signals)
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from lattice_cli.chat.actions import Talk
from lattice_cli.chat.exchange import Exchange, Interrupts
from lattice_cli.chat.keeping import Keeping
from lattice_cli.chat.manner import Manner
from lattice_cli.chat.once import INTERRUPTED, answer_once, open_stdout
from lattice_cli.chat.opening import Wait, begin_engine, begin_remote
from lattice_cli.chat.partner import Partner, Thinking
from lattice_cli.chat.restoring import from_anywhere, open_store, restored
from lattice_cli.chat.session import Session
from lattice_cli.chat.store_rows import Saved
from lattice_cli.console import say
from lattice_cli.errors import ModelNotFound, RemoteFailed, UsageError
from lattice_cli.settings import EngineSettings, Home, read_api_key

STOP_S = 0.7


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for, beside how answers are made. `text` None: talk for as long as the user likes."""

    model: str | None = None
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    context: int | None = None
    system: str | None = None
    text: str | None = None
    continues: bool = False
    session: str | None = None
    saves: bool = True
    schema: str | None = None
    as_json: bool = False
    quiet: bool = False
    thoughts: Thinking = "show"


def run_chat(wish: Wish, manner: Manner, home: Home) -> int:
    """The exit status. Raises: what opening raises; with `text` also what asking and answering raise."""
    if wish.text is None and (wish.as_json or wish.schema is not None):
        option = "--json" if wish.as_json else "--schema"
        raise UsageError(
            f"`{option}` needs one question", param=option, hint="give it with `--prompt`, or through a pipe"
        )
    store = open_store(home)
    saved, name = restored(store, continues=wish.continues, name=wish.session)
    model, url = _with_whom(wish, saved)
    if wish.api_key is not None and url is None:
        raise UsageError("`--api-key` is for a server, and `--url` names none", param="--api-key")
    kept = wish.saves and (wish.text is None or saved is not None or name is not None)
    keeping = Keeping(store, saved, name=name, saving=kept, model=from_anywhere(model), url=url)
    run = _Run(wish, manner, home, model, url, saved.session if saved else Session(), keeping)
    status = 0
    try:
        with run.interrupts.raised():
            status = run.talk()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except SystemExit as ending:  # SIGTERM
        status = int(ending.code or 0)
    finally:
        store.close()
        run.stop(status)
    return status


def _with_whom(wish: Wish, saved: Saved | None) -> tuple[str | None, str | None]:
    """The model and the server: what was asked for, else those of the session."""
    if saved is None or wish.model is not None or wish.url is not None:
        return wish.model, wish.url
    return saved.model, saved.url


class _Run:
    """What is open while a chat runs."""

    def __init__(
        self,
        wish: Wish,
        manner: Manner,
        home: Home,
        model: str | None,
        url: str | None,
        session: Session,
        keeping: Keeping,
    ) -> None:
        self._wish, self._manner, self._home = wish, manner, home
        self._model, self._url, self._keeping = model, url, keeping
        self.interrupts = Interrupts()
        self._session = session.told(wish.system or None) if wish.system is not None else session
        self._early: Callable[[float], bool] = lambda timeout_s: True  # ends what was started before there is a partner
        self._partner: Partner | None = None

    def talk(self) -> int:
        """The exit status."""
        wish = self._wish
        if wish.text is None:
            wait = self._begin()
            self._converse(wait)
            return 0
        stdout = open_stdout()
        talk = self._talk(self._begin()(lambda: None))
        return answer_once(
            talk,
            wish.text,
            stdout,
            self.interrupts,
            as_json=wish.as_json,
            quiet=wish.quiet,
            constrained=wish.schema is not None,
        )

    def stop(self, status: int) -> None:
        """End the engine's thread: one that used mlx and goes on while Python ends aborts the process.

        A load or a long step cannot be interrupted; then the process ends here, at once, with `status`.
        """
        close = self._partner.close if self._partner else self._early
        try:
            if close(STOP_S):
                return
        except KeyboardInterrupt:
            status = INTERRUPTED
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(status)

    def _begin(self) -> Wait:
        """Start what takes long. What comes back waits for it. Raises: what finding a model or a server raises."""
        wish = self._wish
        try:
            if self._url is not None:
                return begin_remote(self._url, wish.api_key or read_api_key(), self._model, wish.context)
            settings = EngineSettings(max_rows=1, context_tokens=wish.context)
            wait, self._early = begin_engine(self._model, self._home, settings, quiet=wish.quiet)
        except (ModelNotFound, RemoteFailed) as error:
            if (self._model, self._url) != (wish.model, wish.url):
                error.hint = "that is who the session was held with; name another with `--model` or `--url`"
            raise
        return wait

    def _talk(self, partner: Partner) -> Talk:
        self._partner = partner
        wish = self._wish
        return Talk(
            partner,
            self._session,
            self._manner,
            self._keeping,
            thinking=wish.thoughts,
            schema=wish.schema,
            hints=wish.text is None,
        )

    def _converse(self, wait: Wait) -> None:
        """The REPL."""
        from lattice_cli.chat.line import open_line
        from lattice_cli.chat.loop import Repl
        from lattice_cli.chat.views import open_view

        signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
        line = open_line(self._home.history if self._wish.saves else None)
        with line.held():
            talk = self._talk(wait(line.pump))
            self._greet(talk)
            with self.interrupts.caught():
                view = open_view(talk, line)
                exchange = Exchange(view, self.interrupts, quiet=self._wish.quiet, pump=line.pump)
                try:
                    Repl(talk, exchange, line, self.interrupts, view).run()
                finally:
                    self._partner = talk.partner  # another one since, perhaps

    def _greet(self, talk: Talk) -> None:
        if self._wish.quiet:
            return
        window = talk.partner.context_tokens
        size = f"{window:,} tokens of context. " if window else ""
        say(f"{talk.partner.name}: {size}/help lists the commands, Ctrl-D leaves")
        if talk.session.turns:
            count = talk.session.questions
            say(f"going on with `{self._keeping.title(talk.session)}` ({count} message{'s' if count != 1 else ''})")
