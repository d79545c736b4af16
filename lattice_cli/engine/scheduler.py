"""Who runs next: waiting -> running. Knows rows and counts; knows no tensors.

The rule: requests take turns. The first in line gets the next free slot for one of its rows, and goes to the end of the
line if it has more of them. So

- with P requests before it in line, a request has its first slot at the latest when P + 1 slots have become free, and
  a further one whenever it has come to the front again: many choices neither keep others waiting nor wait for ever;
- a row whose memory is not free yet may be passed by later ones that fit, at most `max_rows` times; from then on nobody
  passes it, and it is the next to get a slot;
- a row that gave its slot back, because those that began before it need its memory, is the first in line.

Invariant: `running` never holds more than `max_rows` rows.

Thread: worker
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection

from lattice_cli.engine.row import Row


def always_fits(row: Row, running: Collection[Row]) -> bool:
    """Where nobody counts memory."""
    return True


class Scheduler:
    """Slots and the line of requests. `fits(row, running)` says whether there is memory for a row beside those that
    run.
    """

    def __init__(self, max_rows: int, fits: Callable[[Row, Collection[Row]], bool] = always_fits) -> None:
        self._max_rows = max_rows
        self._fits = fits
        self._line: list[deque[Row]] = []  # the waiting rows of each request; none is empty
        self._passes: Counter[str] = Counter()  # how often a waiting row saw a later one get a slot
        self.running: dict[str, Row] = {}

    @property
    def waiting(self) -> list[Row]:
        """The rows without a slot, request by request."""
        return [row for request in self._line for row in request]

    def add(self, *rows: Row) -> None:
        """The rows of one request, to the end of the line."""
        if rows:
            self._line.append(deque(rows))

    def admit(self) -> list[Row]:
        """The rows that get a slot now, in order; they are running from here on."""
        admitted: list[Row] = []
        while (place := self._next()) is not None:
            self._passes.update(request[0].job.id for request in self._line[:place])
            request = self._line.pop(place)
            row = request.popleft()
            if request:
                self._line.append(request)
            self._passes.pop(row.job.id, None)
            self.running[row.job.id] = row
            admitted.append(row)
        return admitted

    def put_back(self) -> Row:
        """Take the slot of the row that got its slot last: it waits again, as the first in line."""
        _, row = self.running.popitem()
        self._line.insert(0, deque([row]))
        return row

    def can_admit(self) -> bool:
        """Whether `admit` would give a row a slot."""
        return self._next() is not None

    def remove(self, job_id: str) -> Row | None:
        """Take a row out, running or waiting; None when it is not here."""
        if job_id in self.running:
            return self.running.pop(job_id)
        row = next((one for one in self.waiting if one.job.id == job_id), None)
        if row is not None:
            self._line = [kept for request in self._line if (kept := deque(one for one in request if one is not row))]
            self._passes.pop(job_id, None)
        return row

    def __len__(self) -> int:
        return len(self.running) + sum(map(len, self._line))

    def _next(self) -> int | None:
        """The place in line of the request that gets the next slot."""
        if len(self.running) >= self._max_rows:
            return None
        for place, request in enumerate(self._line):
            if self._fits(request[0], self.running.values()):
                return place
            if self._passes[request[0].job.id] >= self._max_rows:
                return None
        return None
