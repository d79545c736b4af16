"""Sessions on the disk: one SQLite file in the user's data folder, which nobody else can read.

A turn is written in one transaction before the next is asked, so a killed process loses the running turn at most. Two
processes may write at once: each waits for the other's transaction, which takes milliseconds, and a session that
somebody else has gone on with is never overwritten, but becomes two. A damaged file is set aside.

Knows turns; knows no model and no terminal. Foreign errors end here, as StoreFailed.
How the file is opened and brought up to date is in store_file.py.

Thread: any (one at a time)
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from lattice_cli.chat.session import Session
from lattice_cli.chat.store_file import STEPS, open_file, set_aside
from lattice_cli.conversation import TextPart, Turn
from lattice_cli.errors import StoreFailed

Result = TypeVar("Result")

FACTS = "id, revision, name, title, model, url, system, summary, forgotten"
TURNS = "SELECT role, text, reasoning FROM turns WHERE session = ? ORDER BY position"
LIST = (
    "SELECT s.id, s.name, s.title, s.model, (SELECT count(*) FROM turns t WHERE t.session = s.id AND t.role = 'user'), "
    "s.updated_s FROM sessions s ORDER BY s.updated_s DESC, s.id DESC LIMIT ?"
)
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True, slots=True)
class Saved:
    """A session as it was last read or written. `revision` tells whether somebody else has changed it since."""

    id: int
    revision: int
    name: str | None
    title: str
    model: str
    url: str | None
    session: Session


@dataclass(frozen=True, slots=True)
class Listed:
    """One row of a list."""

    id: int
    name: str | None
    title: str
    model: str
    messages: int
    updated_s: float


class Store:
    """The file, opened when it is first needed. `told` gets a sentence when a damaged file was set aside."""

    def __init__(
        self,
        path: Path,
        told: Callable[[str], None] = lambda sentence: None,
        clock: Callable[[], float] = time.time,
        steps: Sequence[str] = STEPS,
    ) -> None:
        self._path, self._told, self._clock, self._steps = path, told, clock, steps
        self._open: sqlite3.Connection | None = None

    def write(self, saved: Saved | None, session: Session, model: str, url: str | None, name: str | None) -> Saved:
        """Save a session: over `saved`, where nobody else has changed that since, else as a new one.

        Whoever finds another `id` in what comes back has had that happen. Raises: StoreFailed.
        """
        facts = Saved(0, 0, name, title_of(session), model, url, session)
        written = self._try(lambda run: _written(run, saved, facts, self._clock()))
        if written is None:  # what was there is set aside; all of the talk goes into a new file
            written = self._try(lambda run: _written(run, None, facts, self._clock()))
        if written is None:
            raise StoreFailed(f"`{self._path}` is damaged again and again")
        return written

    def rename(self, saved: Saved, name: str) -> Saved:
        """Raises: StoreFailed, also where another session has that name."""
        self._try(lambda run: run.execute("UPDATE sessions SET name = ? WHERE id = ?", (name, saved.id)))
        return replace(saved, name=name)

    def find(self, name: str) -> Saved | None:
        """By its name, else by its number."""
        where, value = ("id = ?", int(name)) if _is_number(name) else ("name = ?", name)
        return self._read(where, (value,))

    def latest(self) -> Saved | None:
        """The session that was written last."""
        return self._read("1 ORDER BY updated_s DESC, id DESC LIMIT 1", ())

    def listed(self, most: int = 50) -> Sequence[Listed]:
        """The latest first."""
        rows = self._try(lambda run: run.execute(LIST, (most,)).fetchall())
        return [Listed(*row) for row in rows or ()]

    def close(self) -> None:
        """Idempotent; the next use opens it again."""
        if self._open is not None:
            with suppress(sqlite3.Error):
                self._open.close()
            self._open = None

    def _read(self, where: str, values: tuple[object, ...]) -> Saved | None:
        def read(run: sqlite3.Connection) -> Saved | None:
            row = run.execute(f"SELECT {FACTS} FROM sessions WHERE {where}", values).fetchone()
            if row is None:
                return None
            number, revision, name, title, model, url, system, summary, forgotten = row
            said = run.execute(TURNS, (number,)).fetchall()
            turns = tuple(Turn(role, (TextPart(text),) if text else (), reasoning=why) for role, text, why in said)
            return Saved(number, revision, name, title, model, url, Session(system, turns, forgotten, summary))

        return self._try(read)

    def _try(self, work: Callable[[sqlite3.Connection], Result]) -> Result | None:
        """All of `work` or nothing, with nobody between. None: the file was damaged and is set aside.

        Raises: StoreFailed.
        """
        try:
            run = self._connection()
            run.execute("BEGIN IMMEDIATE")
            try:
                result = work(run)
                run.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    run.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            self._failed(error)
            return None
        return result

    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            self._open = open_file(self._path, self._steps)
        return self._open

    def _failed(self, error: sqlite3.Error) -> None:
        """A damaged file is set aside, with a sentence. Raises: StoreFailed for everything else."""
        self.close()
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in DAMAGED:
            aside = set_aside(self._path)
            self._told(f"the saved sessions in `{self._path}` are damaged; the file was set aside as `{aside}`")
            return
        if code == sqlite3.SQLITE_CONSTRAINT:
            raise StoreFailed("there is a session of that name already", hint="`/load NAME` opens it") from error
        reason = "another process holds it" if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) else str(error)
        raise StoreFailed(f"the sessions in `{self._path}` cannot be used: {reason}") from error


def _written(run: sqlite3.Connection, before: Saved | None, facts: Saved, now_s: float) -> Saved:
    """Over `before` where its revision is still the one that was read, else as a new session; only turns that differ
    are written.
    """
    session, kept = facts.session, 0
    system, summary = session.system and _storable(session.system), session.summary and _storable(session.summary)
    told = (facts.model, facts.url, system, summary, session.forgotten, now_s)
    if (
        before is not None
        and run.execute(
            "UPDATE sessions SET model = ?, url = ?, system = ?, summary = ?, forgotten = ?, updated_s = ?, "
            "revision = revision + 1 WHERE id = ? AND revision = ?",
            (*told, before.id, before.revision),
        ).rowcount
    ):
        written = replace(facts, id=before.id, revision=before.revision + 1, name=before.name, title=before.title)
        pairs = list(zip(before.session.turns, session.turns, strict=False))
        kept = next((at for at, (old, new) in enumerate(pairs) if old != new), len(pairs))
        run.execute("DELETE FROM turns WHERE session = ? AND position >= ?", (before.id, kept))
    else:
        taken = run.execute("SELECT 1 FROM sessions WHERE name = ?", (facts.name,)).fetchone()
        written = replace(facts, revision=1, name=None if taken else facts.name)
        number = run.execute(
            "INSERT INTO sessions (model, url, system, summary, forgotten, updated_s, created_s, name, title) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*told, now_s, written.name, written.title),
        ).lastrowid
        written = replace(written, id=int(number or 0))
    run.executemany(
        "INSERT INTO turns VALUES (?, ?, ?, ?, ?)",
        [
            (written.id, at, turn.role, _storable(turn.text), turn.reasoning and _storable(turn.reasoning))
            for at, turn in enumerate(session.turns)
            if at >= kept
        ],
    )
    return written


def title_of(session: Session, most: int = 60) -> str:
    """The first message, on one line, cut between words."""
    first = next((turn.text for turn in session.turns if turn.role == "user"), "")
    line = " ".join(_storable(first[:1000]).split())
    return line if len(line) <= most else line[:most].rsplit(" ", 1)[0] + "…"


def _storable(text: str) -> str:
    """Half a surrogate pair cannot be stored."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 18
