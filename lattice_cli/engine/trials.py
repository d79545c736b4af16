"""Rows on their way back into a backend that was reset: after a fault nobody owns they are tried one by one.

    suspect -> tried alone -> cleared -> in the batch again          (or failed, when it faults alone)

They keep their slots meanwhile. Knows rows; how they get into a backend and out of it is the engine's.

Thread: worker
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from lattice_cli.engine.row import Row


class Trials:
    """Which rows hold a slot and are not in the batch with the others."""

    def __init__(self, insert: Callable[[Row], None], remove: Callable[[Row], None]) -> None:
        self._insert = insert
        self._remove = remove
        self._suspects: deque[Row] = deque()
        self._cleared: list[Row] = []
        self._tokens_before = 0
        self.tried: Row | None = None  # alone in the backend

    @property
    def under_way(self) -> bool:
        """Nobody else may enter the backend."""
        return bool(self._suspects) or self.tried is not None

    @property
    def waiting(self) -> bool:
        """A row could enter the backend now."""
        return self.tried is None and bool(self._suspects or self._cleared)

    def in_backend(self, running: Iterable[Row]) -> list[Row]:
        """Those of the running rows that a fault just now may belong to."""
        if self.tried is not None:
            return [self.tried]
        return [row for row in running if row not in self._suspects]

    def suspect(self, rows: Iterable[Row]) -> None:
        """One of them has the fault."""
        rows = list(rows)
        self.tried = None
        self._cleared = [row for row in self._cleared if row not in rows]
        self._suspects.extend(rows)

    def clear(self, rows: Iterable[Row]) -> None:
        """None of them has it: they go on with the next step."""
        self.tried = None
        self._cleared.extend(row for row in rows if row not in self._cleared)

    def pause(self, running: Iterable[Row]) -> None:
        """The backend is reset though no row is at fault: those that are in it start over, a trial too."""
        if self.tried is not None:
            self._suspects.appendleft(self.tried)
        held = [*self._suspects, *self._cleared]
        self.clear(row for row in running if row not in held)

    def begin(self) -> None:
        """Bring in the next one to be tried; else those that are cleared. May raise what the backend raises."""
        if self.under_way:
            if self.tried is None:
                self.tried = self._suspects.popleft()
                self._tokens_before = len(self.tried.emitted)
                self._insert(self.tried)
            return
        while self._cleared:
            self._insert(self._cleared[0])
            self._cleared.pop(0)

    def end(self, *, idle: bool) -> None:
        """After a step: a row that made a token alone is cleared, or one that will make none: the backend is idle."""
        row = self.tried
        if row is None:
            return
        if row.ended:
            self.tried = None
        elif idle or len(row.emitted) > self._tokens_before:
            self._remove(row)
            self.clear([row])

    def forget(self, row: Row) -> None:
        """A row left, however."""
        if row in self._suspects:
            self._suspects.remove(row)
        if row in self._cleared:
            self._cleared.remove(row)
        if row is self.tried:
            self.tried = None
