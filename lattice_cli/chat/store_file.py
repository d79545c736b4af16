"""The file that sessions are kept in: made for its owner alone, opened, brought up to date, set aside.

Knows SQLite; knows no sessions.

Thread: any
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from lattice_cli.errors import StoreFailed

BUSY_S = 10.0
RETRY_S = 0.02
TAB_S = 0.2
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


def open_file(path: Path, steps: Sequence[str] = STEPS) -> sqlite3.Connection:
    """A connection to the file, which is made where it is not there. Transactions are begun and ended by hand.

    Raises: StoreFailed where it cannot be made or is of a newer lattice; sqlite3.Error.
    """
    try:
        private_file(path)
    except OSError as error:
        raise StoreFailed(f"`{path}` cannot be written: {error.strerror or error}") from error
    opened = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        _log_ahead(opened)
        opened.execute("PRAGMA synchronous = FULL")
        opened.execute("PRAGMA foreign_keys = ON")
        _migrate(opened, path, steps)
    except BaseException:
        opened.close()
        raise
    return opened


def session_names(path: Path) -> list[str]:
    """The names of saved sessions, for a shell: nothing is made, changed or set aside for a press of Tab."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=TAB_S)) as opened:
            return [name for (name,) in opened.execute("SELECT name FROM sessions WHERE name NOT NULL ORDER BY name")]
    except sqlite3.Error:
        return []


def _log_ahead(opened: sqlite3.Connection) -> None:
    """Readers and a writer side by side; where the file system cannot, the old way stays. Unlike all else this does not
    wait for another process by itself.
    """
    until_s = time.monotonic() + BUSY_S
    while True:
        try:
            opened.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                raise
            time.sleep(RETRY_S)
        else:
            return


def _migrate(opened: sqlite3.Connection, path: Path, steps: Sequence[str]) -> None:
    """Bring an older file up to date; of two processes one does it and the other finds it done."""
    if _version(opened) == len(steps):
        return
    opened.execute("BEGIN IMMEDIATE")
    try:
        version = _version(opened)
        if version > len(steps):
            raise StoreFailed(f"`{path}` was written by a newer lattice", hint="upgrade, or use `--no-save`")
        for step in steps[version:]:
            for statement in filter(None, (part.strip() for part in step.split(";"))):
                opened.execute(statement)
        opened.execute(f"PRAGMA user_version = {len(steps)}")
    except BaseException:
        opened.execute("ROLLBACK")
        raise
    opened.execute("COMMIT")


def _version(opened: sqlite3.Connection) -> int:
    return int(opened.execute("PRAGMA user_version").fetchone()[0])


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
