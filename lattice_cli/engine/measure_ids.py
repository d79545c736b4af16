"""A backend whose tokens are written down, for those who compare ids and not texts.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lattice_cli.engine.backend import Backend, Emitted, Progress
from lattice_cli.engine.reply import Score
from lattice_cli.engine.row import Row


class Overheard:
    """`backend`, with the ids of each job that `heard` has a list for appended to it."""

    def __init__(self, backend: Backend, heard: Mapping[str, list[int]]) -> None:
        self._backend, self._heard = backend, heard

    def insert(self, row: Row) -> None:
        self._backend.insert(row)

    def advance(self) -> list[Progress | Emitted]:
        outcomes = self._backend.advance()
        for outcome in outcomes:
            if isinstance(outcome, Emitted) and outcome.job_id in self._heard:
                self._heard[outcome.job_id].append(outcome.token_id)
        return outcomes

    def remove(self, job_ids: Sequence[str]) -> None:
        self._backend.remove(job_ids)

    def reset(self) -> None:
        self._backend.reset()

    def score(self, ids: tuple[int, ...], top: int) -> Iterator[list[Score]]:
        return self._backend.score(ids, top)

    def ready_in_s(self) -> float | None:
        return self._backend.ready_in_s()

    def close(self) -> None:
        self._backend.close()
