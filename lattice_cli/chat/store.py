"""Sessions on the disk: one SQLite file in the user's data folder, which nobody else can read.

A turn is written in one transaction before the next is asked, so a killed process loses the running turn at most. Two
processes may write at once: each waits for the other's transaction, which takes milliseconds, and a session that
somebody else has gone on with is never overwritten, but becomes two. A damaged file is set aside.

Knows turns; knows no model and no terminal. Foreign errors end here, as StoreFailed.

Thread: any (one at a time)
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lattice_cli.chat.session import Session
from lattice_cli.conversation import TextPart, Turn
from lattice_cli.errors import LatticeError

BUSY_S = 10.0
# How the file came to be as it is: `PRAGMA user_version` says how many of these it has seen. Never change one, add one.
STEPS = (
    """
    CREATE TABLE sessions (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, title TEXT NOT NULL, model TEXT NOT NULL, url TEXT,
        system TEXT, summary TEXT, forgotten INTEGER NOT NULL DEFAULT 0,
        created_s REAL NOT NULL, updated_s REAL NOT NULL, revision INTEGER NOT NULL DEFAULT 1
    );
    CREATE TABLE turns (
        session INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, position INTEGER NOT NULL,
        role TEXT NOT NULL, text TEXT NOT NULL, reasoning TEXT,
        PRIMARY KEY (session, position)
    ) WITHOUT ROWID;
    CREATE INDEX latest ON sessions (updated_s);
    """,
)
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class StoreFailed(LatticeError):
    """Sessions cannot be read or written; the talk goes on without."""


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
        for _ in range(2):
            with self._transaction() as run:
                if run is not None:
                    return self._written(run, saved, session, model, url, name)
            saved = None  # the file was damaged and is a new one now
        raise StoreFailed(f"`{self._path}` is damaged again and again")

    def rename(self, saved: Saved, name: str) -> Saved:
        """Raises: StoreFailed, also where another session has that name."""
        with self._transaction() as run:
            if run is not None:
                run.execute("UPDATE sessions SET name = ? WHERE id = ?", (name, saved.id))
        return Saved(saved.id, saved.revision, name, saved.title, saved.model, saved.url, saved.session)

    def find(self, name: str) -> Saved | None:
        """By its name, else by its number."""
        where, value = ("id = ?", int(name)) if _is_number(name) else ("name = ?", name)
        return self._read(where, (value,))

    def latest(self) -> Saved | None:
        """The session that was written last."""
        return self._read("1 ORDER BY updated_s DESC, id DESC LIMIT 1", ())

    def listed(self, most: int = 50) -> Sequence[Listed]:
        """The latest first."""
        with self._transaction() as run:
            if run is None:
                return ()
            rows = run.execute(
                "SELECT s.id, s.name, s.title, s.model, s.updated_s, (SELECT count(*) FROM turns t WHERE "
                "t.session = s.id AND t.role = 'user') FROM sessions s ORDER BY s.updated_s DESC, s.id DESC LIMIT ?",
                (most,),
            ).fetchall()
        return [Listed(row[0], row[1], row[2], row[3], row[5], row[4]) for row in rows]

    def close(self) -> None:
        """Idempotent; the next use opens it again."""
        if self._open is not None:
            with suppress(sqlite3.Error):
                self._open.close()
            self._open = None

    def _written(
        self,
        run: sqlite3.Connection,
        saved: Saved | None,
        session: Session,
        model: str,
        url: str | None,
        name: str | None,
    ) -> Saved:
        now_s, kept = self._clock(), 0
        if saved is not None:
            changed = run.execute(
                "UPDATE sessions SET model = ?, url = ?, system = ?, summary = ?, forgotten = ?, updated_s = ?, "
                "revision = revision + 1 WHERE id = ? AND revision = ?",
                (model, url, session.system, session.summary, session.forgotten, now_s, saved.id, saved.revision),
            ).rowcount
            saved = saved if changed else None
        if saved is not None:
            number, revision, name, title = saved.id, saved.revision + 1, saved.name, saved.title
            pairs = zip(saved.session.turns, session.turns, strict=False)
            shorter = min(len(saved.session.turns), len(session.turns))
            kept = next((at for at, (old, new) in enumerate(pairs) if old != new), shorter)
            run.execute("DELETE FROM turns WHERE session = ? AND position >= ?", (number, kept))
        else:
            title, revision = title_of(session), 1
            taken = name is not None and run.execute("SELECT 1 FROM sessions WHERE name = ?", (name,)).fetchone()
            name = None if taken else name
            cursor = run.execute(
                "INSERT INTO sessions (name, title, model, url, system, summary, forgotten, created_s, updated_s) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (name, title, model, url, session.system, session.summary, session.forgotten, now_s, now_s),
            )
            number = int(cursor.lastrowid or 0)
        run.executemany(
            "INSERT INTO turns VALUES (?, ?, ?, ?, ?)",
            [
                (number, at, turn.role, _storable(turn.text), turn.reasoning and _storable(turn.reasoning))
                for at, turn in enumerate(session.turns)
            ][kept:],
        )
        return Saved(number, revision, name, title, model, url, session)

    def _read(self, where: str, values: tuple[object, ...]) -> Saved | None:
        with self._transaction() as run:
            if run is None:
                return None
            row = run.execute(
                f"SELECT id, revision, name, title, model, url, system, summary, forgotten FROM sessions WHERE {where}",
                values,
            ).fetchone()
            if row is None:
                return None
            turns = run.execute(
                "SELECT role, text, reasoning FROM turns WHERE session = ? ORDER BY position", (row[0],)
            ).fetchall()
        said = tuple(Turn(r, (TextPart(text),) if text else (), reasoning=thought) for r, text, thought in turns)
        number, revision, name, title, model, url, system, summary, forgotten = row
        return Saved(number, revision, name, title, model, url, Session(system, said, forgotten, summary))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection | None]:
        """All or nothing, with nobody between. None: the file was damaged and has been set aside."""
        try:
            run = self._connection()
            run.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._failed(error)
            yield None
            return
        try:
            yield run
            run.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                run.execute("ROLLBACK")
            self._failed(error)

    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            try:
                private_file(self._path)
            except OSError as error:
                raise StoreFailed(f"`{self._path}` cannot be written: {error.strerror or error}") from error
            opened = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
            self._open = opened
            opened.execute("PRAGMA journal_mode = WAL")  # where the file system cannot, the old journal stays
            opened.execute("PRAGMA synchronous = FULL")
            opened.execute("PRAGMA foreign_keys = ON")
            self._migrate(opened)
        return self._open

    def _migrate(self, run: sqlite3.Connection) -> None:
        """Bring an older file up to date; of two processes one does it and the other finds it done."""
        if self._version(run) == len(self._steps):
            return
        run.execute("BEGIN IMMEDIATE")
        try:
            version = self._version(run)
            if version > len(self._steps):
                self._open = None
                raise StoreFailed(f"`{self._path}` was written by a newer lattice", hint="upgrade, or use `--no-save`")
            for step in self._steps[version:]:
                for statement in filter(None, (part.strip() for part in step.split(";"))):
                    run.execute(statement)
            run.execute(f"PRAGMA user_version = {len(self._steps)}")
        except BaseException:
            run.execute("ROLLBACK")
            raise
        run.execute("COMMIT")

    @staticmethod
    def _version(run: sqlite3.Connection) -> int:
        return int(run.execute("PRAGMA user_version").fetchone()[0])

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


def private_file(path: Path) -> None:
    """Make sure that a file is there which only its owner can read, in a folder that only its owner can enter.

    Raises: OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


def set_aside(path: Path) -> Path:
    """Rename a database with what belongs to it; the new name. Somebody else may have done it already."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    for suffix in ("", "-wal", "-shm"):
        with suppress(OSError):
            os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


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
