"""A backend whose tokens are written down, for those who compare ids and not texts.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Mapping

from lattice_cli.engine.backend import Backend, Emitted, Progress
from lattice_cli.engine.measure_trial import PassingBackend


class Overheard(PassingBackend):
    """`backend`, with the ids of each job that `heard` has a list for appended to it."""

    def __init__(self, backend: Backend, heard: Mapping[str, list[int]]) -> None:
        super().__init__(backend)
        self._heard = heard

    def advance(self) -> list[Progress | Emitted]:
        outcomes = self._backend.advance()
        for outcome in outcomes:
            if isinstance(outcome, Emitted) and outcome.job_id in self._heard:
                self._heard[outcome.job_id].append(outcome.token_id)
        return outcomes
