"""Where a talk is kept: which saved session it is, and what is said about saving.

A failure to save never ends a talk: it is a sentence, once, and the next turn is tried again.

Thread: any (one at a time)
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence

from lattice_cli.chat.session import Session
from lattice_cli.chat.store import Store
from lattice_cli.chat.store_rows import Saved, title_of
from lattice_cli.errors import StoreFailed, UsageError

LONGEST_NAME = 80


class Keeping:
    """The saved session that a talk is. `store` None: nothing is kept; with `saving` False not until `save_as`.

    `model` and `url` say who answered, as the command line takes them, for the next `--continue`.
    """

    def __init__(
        self,
        store: Store | None,
        saved: Saved | None = None,
        *,
        name: str | None = None,
        saving: bool = True,
        model: str | None = None,
        url: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._saved, self._name, self._saving = store, saved, name, saving
        self._model, self._url, self._clock = model, url, clock
        self._complained = False

    @property
    def saved(self) -> bool:
        """Whether there is a saved session."""
        return self._saved is not None

    def title(self, session: Session) -> str:
        """What stands above the talk."""
        return (self._saved.title if self._saved else title_of(session)) or "A chat"

    def answered_by(self, model: str | None) -> None:
        """Another model answers from here on, as `--model` takes it."""
        self._model = model

    def begin_anew(self) -> None:
        """What comes now is another session."""
        self._saved, self._name = None, None

    def keep(self, session: Session, model: str) -> str | None:
        """Save what there is; a sentence where that must be said."""
        if self._store is None or not self._saving or (not session.turns and self._saved is None):
            return None
        before = self._saved
        try:
            self._saved = self._store.write(before, session, self._model or model, self._url, self._name)
        except StoreFailed as error:
            told, self._complained = not self._complained, True
            return f"not saved: {error.message}" if told else None
        self._complained = False
        if before is not None and before.id != self._saved.id:
            return f"this session was changed elsewhere, so yours goes on as session {self._saved.id}"
        if before is None and self._name is not None and self._saved.name != self._name:
            return f"another chat began `{self._name}` meanwhile, so yours goes on as session {self._saved.id}"
        return None

    def save_as(self, name: str, session: Session, model: str) -> str:
        """Raises: UsageError, StoreFailed."""
        wanted = checked_name(name)
        if self._store is None:
            raise UsageError("there is nowhere to save to")
        if not session.turns:
            raise UsageError("there is nothing to save yet", hint="ask something first")
        if wanted and (other := self._store.find(wanted)) and (self._saved is None or other.id != self._saved.id):
            raise UsageError(f"there is a session `{wanted}` already", hint=f"`/load {wanted}` opens it")
        self._saving = True
        self._saved = self._store.write(self._saved, session, self._model or model, self._url, self._name or wanted)
        if wanted and self._saved.name != wanted:
            self._saved = self._store.rename(self._saved, wanted)
        typed = shlex.quote(self._saved.name or str(self._saved.id))
        return f"saved as {_called(self._saved)}; `lattice chat --session {typed}` goes on"

    def load(self, name: str) -> tuple[Session, str]:
        """Raises: UsageError where there is none of that name, StoreFailed."""
        if self._store is None:
            raise UsageError("no sessions are kept here")
        if not name.strip():
            raise UsageError("say which session", hint="`/sessions` lists them")
        found = self._store.find(name.strip())
        if found is None:
            raise UsageError(f"there is no session `{name.strip()}`", hint="`/sessions` lists them")
        self._saved, self._name = found, found.name
        count = found.session.questions
        return found.session, f"{_called(found)}: {found.title} ({count} message{'s' if count != 1 else ''})"

    def rows(self) -> Sequence[tuple[str, str, str, str, str]]:
        """Number, name, title, messages and age, the latest first. Raises: StoreFailed."""
        now_s = self._clock()
        return [
            (str(one.id), one.name or "", one.title, str(one.messages), ago(now_s - one.updated_s))
            for one in (self._store.listed() if self._store else ())
        ]


def checked_name(name: str) -> str | None:
    """A session's name; None for none. Raises: UsageError for one that is a number, too long or not to be printed."""
    name = " ".join(name.split())
    if not name:
        return None
    if name.isdecimal():
        raise UsageError(f"`{name}` is a number, and a session's name needs a letter")
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise UsageError(f"a session's name has at most {LONGEST_NAME} letters, all of them to be seen")
    return name


def ago(seconds: float) -> str:
    """How long it is, for people."""
    for size, noun in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {noun}{'s' if count != 1 else ''} ago"
    return "just now"


def _called(saved: Saved) -> str:
    return f"`{saved.name}`" if saved.name else f"session {saved.id}"
