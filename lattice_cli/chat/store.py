"""Sessions on the disk: one SQLite file in the user's data folder, which nobody else can read.

A turn is written in one transaction before the next is asked, so a killed process loses the running turn at most. Two
processes may write at once: each waits for the other's transaction, which takes milliseconds, and a session that
somebody else has gone on with is never overwritten, but becomes two. A damaged file is set aside.

Knows turns; knows no model and no terminal. Foreign errors end here, as StoreFailed.
How the file is opened and brought up to date is in store_file.py, what is written in store_rows.py.

Thread: any (one at a time)
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from lattice_cli.chat.session import Session
from lattice_cli.chat.store_file import STEPS, open_file, set_aside
from lattice_cli.chat.store_rows import Listed, Saved, list_sessions, read_session, title_of, written
from lattice_cli.errors import StoreFailed

Result = TypeVar("Result")

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


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
        done = self._try(lambda run: written(run, saved, facts, self._clock()))
        if done is None:  # what was there is set aside; all of the talk goes into a new file
            done = self._try(lambda run: written(run, None, facts, self._clock()))
        if done is None:
            raise StoreFailed(f"`{self._path}` is damaged again and again")
        return done

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
        return self._try(lambda run: list_sessions(run, most)) or ()

    def close(self) -> None:
        """Idempotent; the next use opens it again."""
        if self._open is not None:
            with suppress(sqlite3.Error):
                self._open.close()
            self._open = None

    def _read(self, where: str, values: tuple[object, ...]) -> Saved | None:
        return self._try(lambda run: read_session(run, where, values))

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


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 18
