"""Device work for those who measure: logits of given ids, and a workbench on which trials are run by turns.

Everything runs on a thread of its own, because a thread that used mlx may do nothing with it after it cleared its
streams; so it is not the caller's.

Thread: any (each bench has a thread of its own)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lattice_cli.engine.measure_trial import RowTimes, TimedBackend, run_rows
from lattice_cli.engine.open import OpenEngine, open_engine, open_network
from lattice_cli.job import Job
from lattice_cli.model.card import ModelCard, ModelSource
from lattice_cli.settings import EngineSettings, Home

if TYPE_CHECKING:
    from lattice_cli.engine.backend import Backend
    from lattice_cli.engine.measure_limits import MachineLimits, Weights
    from lattice_cli.model.load import LoadedModel
    from lattice_cli.model.random_weights import RandomModel

T = TypeVar("T")


def measure_logits(
    source: ModelSource, home: Home, prompts: Sequence[Sequence[int]]
) -> tuple[ModelCard, list[np.ndarray[Any, Any]]]:
    """The card, and for each prompt float32 logits (tokens, vocabulary), as the engine's network gives them.

    Blocks: loads the model, reads every prompt whole. Raises: ModelError, InstallError.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="lattice-measure") as pool:
        return pool.submit(_logits, source, home, prompts).result()


def _logits(
    source: ModelSource, home: Home, prompts: Sequence[Sequence[int]]
) -> tuple[ModelCard, list[np.ndarray[Any, Any]]]:
    from lattice_cli.kernels import blas

    blas.preload(home)
    import mlx.core as mx

    from lattice_cli.model.load import load

    try:
        loaded = load(source, home)
        found = [np.array(loaded.network(mx.array([list(ids)]))[0].astype(mx.float32)) for ids in prompts]
        return loaded.card, found
    finally:
        mx.clear_streams()


class Workbench:
    """A model on a thread of its own, for trials one after the other. Use as a context manager: it opens the model
    (seconds; `load_s` says how many) and lets go of it, also when Ctrl-C ends a trial.

    Raises from its beginning: ModelError, InstallError, UsageError.
    """

    def __init__(self, model: ModelSource | RandomModel, home: Home, settings: EngineSettings) -> None:
        self._model, self._home, self._settings = model, home, settings
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lattice-measure")
        self._stop = threading.Event()
        self._opened: OpenEngine | None = None
        self._network: Any | None = None  # the engine's, where it has one
        self._reference: Any | None = None
        self.load_s = 0.0

    def __enter__(self) -> Workbench:
        try:
            began_s = time.monotonic()
            self.card: ModelCard = self._do(self._open)
            self.load_s = time.monotonic() - began_s
        except BaseException:
            self._pool.shutdown()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._opened is not None:
            self._pool.submit(self._close).result()
        self._pool.shutdown()

    def run(self, jobs: Sequence[Job]) -> list[RowTimes]:
        """A trial: all jobs at once, to their ends. Raises: as `run_rows`."""
        assert self._opened is not None
        engine = self._opened.engine
        return self._do(lambda: run_rows(engine, self._timed, jobs, stopped=self._stop.is_set))

    def run_reference(self, jobs: Sequence[Job]) -> list[RowTimes]:
        """The same by mlx-lm's own loops and network (reference.py). The first call loads."""
        return self._do(lambda: self._refer(jobs))

    def weights(self) -> Weights | None:
        """What a step computes with; None of a script."""
        from lattice_cli.engine.measure_limits import weigh

        network = self._network
        return None if network is None else self._do(lambda: weigh(network, self.card.context_tokens))

    def machine(self, threads: int) -> MachineLimits:
        """What this machine can do at best."""
        from lattice_cli.engine.measure_limits import measure_machine

        return self._do(lambda: measure_machine(threads))

    def device_peak_bytes(self) -> int | None:
        """The most memory mlx's own allocator has held; None of a script."""
        if self._network is None:
            return None
        import mlx.core as mx

        return self._do(lambda: int(mx.get_peak_memory()))

    # Below: the bench's own thread.

    def _do(self, work: Callable[[], T]) -> T:
        return self._pool.submit(work).result()

    def _open(self) -> ModelCard:
        if isinstance(self._model, ModelSource) and self._model.kind == "script":
            self._opened = open_engine(self._model, self._home, self._settings, watch=self._watch)
        else:
            self._opened = open_network(self._read, self._home, self._settings, self._watch)
        return self._opened.card

    def _read(self) -> LoadedModel:
        from lattice_cli.model.load import load
        from lattice_cli.model.random_weights import RandomModel, make_up

        context_tokens = self._settings.context_tokens
        if isinstance(self._model, RandomModel):
            loaded = make_up(self._model, self._home, context_tokens=context_tokens)
        else:
            loaded = load(self._model, self._home, context_tokens=context_tokens)
        self._network = loaded.network
        return loaded

    def _watch(self, backend: Backend) -> Backend:
        self._timed = TimedBackend(backend)
        return self._timed

    def _refer(self, jobs: Sequence[Job]) -> list[RowTimes]:
        from lattice_cli.engine.reference import reference_network, run_reference, run_reference_rows
        from lattice_cli.kernels import native_choice

        if self._reference is None:
            self._reference = reference_network(self._model)
        native, tokens = native_choice.choose(self._home).module, jobs[0].limits.max_tokens
        if len(jobs) == 1:
            return [run_reference(self._reference, jobs[0].prompt.ids, tokens, native)]
        return run_reference_rows(self._reference, [job.prompt.ids for job in jobs], tokens, native)

    def _close(self) -> None:
        assert self._opened is not None
        self._network = self._reference = None
        self._opened.close()
