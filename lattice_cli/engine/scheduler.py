"""Who runs next: waiting -> running. Knows rows and counts; knows no tensors.

Invariant: `running` never holds more than `max_rows` rows, and rows are admitted first come, first served.

Thread: worker
"""

from __future__ import annotations

from collections import deque

from lattice_cli.engine.row import Row


class Scheduler:
    """Slots and the waiting line.

    Rows in prefill are padded to the longest of them, so a newcomer joins a prefill under way only when
    their lengths are within a factor of two; else it waits for that prefill to end.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self.waiting: deque[Row] = deque()
        self.running: dict[str, Row] = {}

    def add(self, row: Row) -> None:
        """To the end of the line."""
        self.waiting.append(row)

    def admit(self) -> list[Row]:
        """The rows that get a slot now, in order; they are running from here on."""
        admitted: list[Row] = []
        while self.waiting and len(self.running) < self._max_rows and self._joins(self.waiting[0]):
            row = self.waiting.popleft()
            self.running[row.job.id] = row
            admitted.append(row)
        return admitted

    def can_admit(self) -> bool:
        """Whether `admit` would give a row a slot."""
        return bool(self.waiting) and len(self.running) < self._max_rows and self._joins(self.waiting[0])

    def _joins(self, row: Row) -> bool:
        lengths = [other.prompt_tokens for other in self.running.values() if not other.decoding]
        return all(max(length, row.prompt_tokens) <= 2 * min(length, row.prompt_tokens) for length in lengths)

    def remove(self, job_id: str) -> Row | None:
        """Take a row out, running or waiting; None when it is not here."""
        if job_id in self.running:
            return self.running.pop(job_id)
        for row in self.waiting:
            if row.job.id == job_id:
                self.waiting.remove(row)
                return row
        return None

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)
