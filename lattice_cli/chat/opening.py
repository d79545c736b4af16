"""Who answers, opened: the engine of this process or a server, with the model that was asked for or talked to last.

Thread: any (the main thread)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress

from lattice_cli.chat.engine_partner import EnginePartner
from lattice_cli.chat.partner import Partner
from lattice_cli.console import say
from lattice_cli.engine.worker import EngineWorker, State
from lattice_cli.errors import EngineUnavailable
from lattice_cli.model.card import ModelCard, ModelSource
from lattice_cli.options import cached_models
from lattice_cli.settings import EngineSettings, Home

LOAD_TICK_S = 0.1

Pump = Callable[[], None]  # called often while there is something to wait for
Wait = Callable[[Pump], Partner]  # blocks until there is a partner
Stop = Callable[[float], bool]  # False: it did not end in so many seconds


def begin_engine(model: str | None, home: Home, settings: EngineSettings, *, quiet: bool) -> tuple[Wait, Stop]:
    """Start loading a model, pulled first where it is not here. Raises: what finding it raises."""
    from lattice_cli.model.locate import find_model

    source = find_model(model, home)
    loader = Loader(home, settings, quiet=quiet)
    worker = loader.start(source)

    def wait(pump: Pump) -> Partner:
        loader.pump = pump
        return loader.partner(worker, source)

    return wait, worker.stop


def begin_remote(url: str, api_key: str | None, model: str | None, context_tokens: int | None) -> Wait:
    """Ask a server what it has. Raises: UsageError, RemoteFailed."""
    from lattice_cli.chat.remote import open_remote
    from lattice_cli.chat.remote_server import read_server

    partner = open_remote(read_server(url, api_key), model, context_tokens)
    return lambda pump: partner


class Loader:
    """Starts workers and waits for their models, saying so."""

    def __init__(self, home: Home, settings: EngineSettings, *, quiet: bool) -> None:
        self._home, self._settings, self._quiet = home, settings, quiet
        self.pump: Pump = lambda: None

    def start(self, source: ModelSource) -> EngineWorker:
        """A worker that loads `source` from now on."""
        from lattice_cli.engine.open import open_engine

        worker = EngineWorker(lambda: open_engine(source, self._home, self._settings), self._settings)
        worker.start()
        return worker

    def wait(self, worker: EngineWorker, source: ModelSource, *, silent: bool = False) -> ModelCard:
        """`silent`: whoever waits says so. Raises: what loading raised."""
        from lattice_cli.console import status

        with nullcontext() if silent or self._quiet else status(f"loading {source.served_id}"):
            while worker.state is State.LOADING:
                with suppress(EngineUnavailable):
                    worker.wait_ready(LOAD_TICK_S)
                self.pump()
            card = worker.wait_ready()
        for note in () if self._quiet else card.notes:
            say(note)
        return card

    def partner(self, worker: EngineWorker, source: ModelSource) -> EnginePartner:
        """The worker's model as a partner, loaded. Other models must lie on this machine: nothing is downloaded in
        the middle of a talk. Raises: what loading raised.
        """
        from lattice_cli.model.locate import locate

        def reopen(other: ModelSource) -> tuple[EngineWorker, ModelCard]:
            started = self.start(other)
            return started, self.wait(started, other, silent=True)

        return EnginePartner(
            worker,
            self.wait(worker, source),
            source,
            find=lambda name: locate(name, self._home),
            reopen=reopen,
            names=lambda: cached_models(self._home.models),
        )
