"""A backend whose rows count upwards and that faults on command; and a clock that stands still.

Like the real one it is one step ahead, and after a fault it gives wrong tokens until it is reset.

Thread: any
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lattice_cli.engine.backend import Emitted, Progress
from lattice_cli.engine.reply import Score
from lattice_cli.engine.row import Row
from lattice_cli.events import Event, Piece
from lattice_cli.job import Job, Limits, Prompt, Sampling


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class CountingBackend:
    """Row of prompt length p emits p + 1, p + 2, ... (as characters); reads `prefill_chunk` tokens a step.

    `faults(rows)` is asked at each step with the rows in the batch: an exception it returns is raised.
    """

    def __init__(self, faults: Callable[[list[Row]], Exception | None] = lambda rows: None) -> None:
        self._faults = faults
        self.rows: dict[str, Row] = {}
        self.read: dict[str, int] = {}
        self.spoilt = False
        self.inserted: list[str] = []
        self.closed = False
        self.prefill_chunk = 512

    def insert(self, row: Row) -> None:
        self.rows[row.job.id] = row
        self.read[row.job.id] = 0
        self.inserted.append(row.job.id)

    def advance(self) -> list[Progress | Emitted]:
        fault = self._faults(list(self.rows.values()))
        if fault is not None:
            self.spoilt = True
            raise fault
        outcomes: list[Progress | Emitted] = []
        for job_id, row in self.rows.items():
            total = len(row.ids)
            if self.read[job_id] < total and not row.ended:
                self.read[job_id] = min(total, self.read[job_id] + self.prefill_chunk)
                outcomes.append(Progress(job_id, self.read[job_id], total))
            else:
                outcomes.append(Emitted(job_id, ord("!") if self.spoilt else total + 64))
                self.read[job_id] = total + 1
        return outcomes

    def score(self, ids: tuple[int, ...], top: int) -> Iterator[list[Score]]:
        """Two tokens a chunk, each as likely as minus its id; the token 99 cannot be read."""
        for start in range(1, len(ids), 2):
            if 99 in ids[start : start + 2]:
                raise RuntimeError("poison")
            yield [(-float(token), ((token, -float(token)),)[:top]) for token in ids[start : start + 2]]

    def remove(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            self.rows.pop(job_id, None)

    def reset(self) -> None:
        self.rows.clear()
        self.spoilt = False

    def ready_in_s(self) -> float | None:
        return 0.0 if self.rows else None

    def close(self) -> None:
        self.closed = True


def job(name: str, prompt_tokens: int = 3, max_tokens: int = 5) -> Job:
    return Job(name, Prompt((97,) * prompt_tokens, ""), Sampling(), Limits(max_tokens))


def text_of(events: Sequence[Event], name: str) -> str:
    return "".join(event.text for event in events if isinstance(event, Piece) and event.job_id == name)


def counted(prompt_tokens: int, tokens: int) -> str:
    """What a row of the counting backend says."""
    return "".join(chr(64 + prompt_tokens + index) for index in range(tokens))
