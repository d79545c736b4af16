"""What answers at /metrics, and what is read of the worker for it.

Thread: request
"""

from __future__ import annotations

import falcon

from lattice_cli.engine.worker import EngineWorker, State
from lattice_cli.telemetry import Figures, Telemetry


class Metrics:
    """GET: numbers for Prometheus. Never waits for the engine."""

    def __init__(self, worker: EngineWorker, telemetry: Telemetry) -> None:
        self._worker = worker
        self._telemetry = telemetry
        telemetry.watch(
            "lattice_engine_state",
            "1 for the state the engine is in",
            tuple(state.value for state in State),
            lambda: worker.state.value,
        )
        telemetry.figures(self._load)

    def _load(self) -> Figures:
        rows, cache = self._worker.rows, self._worker.cache_stats
        return {
            "lattice_rows": ("Replies that have a slot", rows),
            "lattice_queue_depth": (
                "Replies that wait for a slot, those that gave theirs back among them",
                max(0, self._worker.open_jobs() - rows),
            ),
            "lattice_turn_seconds": ("How long the engine has been in its present step", self._worker.turn_s()),
            "lattice_cache_bytes": ("What the prefix cache holds", cache.bytes),
            "lattice_cache_budget_bytes": ("The most that it may hold", cache.budget_bytes),
            "lattice_cache_entries": ("Beginnings of prompts that it holds", cache.entries),
            "lattice_cache_lookups_total": ("Prompts that were looked up in it", cache.lookups),
            "lattice_cache_hits_total": ("Those that it had the beginning of", cache.hits),
            "lattice_cache_evictions_total": ("Beginnings that made room for others", cache.evictions),
        }

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        resp.data, resp.content_type = self._telemetry.page(req.get_header("Accept"))

    on_head = on_get
