"""Sessions as rows of a table: reading, listing and writing one, inside somebody's transaction.

Knows SQL; knows no files.

Thread: any
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lattice_cli.chat.session import Session
from lattice_cli.conversation import TextPart, Turn

FACTS = "id, revision, name, title, model, url, system, summary, forgotten"
TURNS = "SELECT role, text, reasoning FROM turns WHERE session = ? ORDER BY position"
LIST = (
    "SELECT s.id, s.name, s.title, s.model, (SELECT count(*) FROM turns t WHERE t.session = s.id AND t.role = 'user'), "
    "s.updated_s FROM sessions s ORDER BY s.updated_s DESC, s.id DESC LIMIT ?"
)


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


def read_session(run: sqlite3.Connection, where: str, values: tuple[object, ...]) -> Saved | None:
    """The session that `where` finds."""
    row = run.execute(f"SELECT {FACTS} FROM sessions WHERE {where}", values).fetchone()
    if row is None:
        return None
    number, revision, name, title, model, url, system, summary, forgotten = row
    said = run.execute(TURNS, (number,)).fetchall()
    turns = tuple(Turn(role, (TextPart(text),) if text else (), reasoning=why) for role, text, why in said)
    return Saved(number, revision, name, title, model, url, Session(system, turns, forgotten, summary))


def list_sessions(run: sqlite3.Connection, most: int) -> Sequence[Listed]:
    """The latest first."""
    return [Listed(*row) for row in run.execute(LIST, (most,)).fetchall()]


def written(run: sqlite3.Connection, before: Saved | None, facts: Saved, now_s: float) -> Saved:
    """Over `before` where its revision is still the one that was read, else as a new session; only turns that differ
    are written.
    """
    session, kept = facts.session, 0
    system, summary = session.system and _storable(session.system), session.summary and _storable(session.summary)
    told = (facts.model, facts.url, system, summary, session.forgotten, now_s)
    if (
        before is not None
        and run.execute(
            "UPDATE sessions SET model = ?, url = ?, system = ?, summary = ?, forgotten = ?, updated_s = ?, title = ?, "
            "revision = revision + 1 WHERE id = ? AND revision = ?",
            (*told, facts.title or before.title, before.id, before.revision),
        ).rowcount
    ):
        title = facts.title or before.title
        done = replace(facts, id=before.id, revision=before.revision + 1, name=before.name, title=title)
        pairs = list(zip(before.session.turns, session.turns, strict=False))
        kept = next((at for at, (old, new) in enumerate(pairs) if old != new), len(pairs))
        run.execute("DELETE FROM turns WHERE session = ? AND position >= ?", (before.id, kept))
    else:
        taken = run.execute("SELECT 1 FROM sessions WHERE name = ?", (facts.name,)).fetchone()
        done = replace(facts, revision=1, name=None if taken else facts.name)
        number = run.execute(
            "INSERT INTO sessions (model, url, system, summary, forgotten, updated_s, created_s, name, title) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*told, now_s, done.name, done.title),
        ).lastrowid
        done = replace(done, id=int(number or 0))
    run.executemany(
        "INSERT INTO turns VALUES (?, ?, ?, ?, ?)",
        [
            (done.id, at, turn.role, _storable(turn.text), turn.reasoning and _storable(turn.reasoning))
            for at, turn in enumerate(session.turns)
            if at >= kept
        ],
    )
    return done


def title_of(session: Session, most: int = 60) -> str:
    """The first message, on one line, cut between words."""
    first = next((turn.text for turn in session.turns if turn.role == "user"), "")
    line = " ".join(_storable(first[:1000]).split())
    return line if len(line) <= most else line[:most].rsplit(" ", 1)[0] + "…"


def _storable(text: str) -> str:
    """Half a surrogate pair cannot be stored."""
    return text.encode("utf-8", "replace").decode("utf-8")
