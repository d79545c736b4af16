"""Settings -> everything that makes up a server, put together.

The socket comes first, so that a taken port is told before anything is loaded.

Thread: any
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lattice_cli.console import say
from lattice_cli.engine.open import OpenEngine, open_engine
from lattice_cli.engine.worker import EngineWorker
from lattice_cli.errors import UsageError
from lattice_cli.model.locate import find_model
from lattice_cli.serve.access import Access, check_keys, check_origins
from lattice_cli.serve.app import create_app
from lattice_cli.serve.hosts import ANY_HOST, Hosts, hosts_of, is_loopback
from lattice_cli.serve.limits import check_budget
from lattice_cli.serve.lines import AppLines
from lattice_cli.serve.server import HttpServer
from lattice_cli.serve.settings import Door, ServeSettings
from lattice_cli.serve.sockets import listen_at, listen_on
from lattice_cli.serve.supervisor import Ending, Supervisor
from lattice_cli.serve.wire import wire_named
from lattice_cli.settings import EngineSettings, Home
from lattice_cli.telemetry import Telemetry


def assemble(
    model: str | None,
    tokenizer_dir: Path | None,
    door: Door,
    home: Home,
    engine: EngineSettings,
    settings: ServeSettings,
    ending: Ending,
) -> Supervisor:
    """A server that listens and has not begun. Raises: LatticeError for a door that cannot be opened."""
    guarded = Access(ANY_HOST, check_keys(door.keys), check_origins(door.origins))
    unix = None if door.unix_socket is None else listen_at(door.unix_socket)
    listener = listen_on(door.host, door.port) if unix is None else unix.listener
    access = (
        guarded if unix else replace(guarded, hosts=_hosts(door, listener.getsockname()[0]))
    )  # no page reaches a path
    lines = AppLines.on_stdout()

    def open_model() -> OpenEngine:
        """On the worker thread: a first use may download for minutes, while /health says `loading`."""
        opened = open_engine(find_model(model, home), home, engine, tokenizer_dir=tokenizer_dir)
        try:
            check_budget(settings, opened.card)
        except UsageError:
            opened.close()
            raise
        return opened

    worker, telemetry = EngineWorker(open_model, engine), Telemetry()
    app = create_app(worker, settings, lines, access=access, telemetry=telemetry)
    server = HttpServer(
        app,
        listener,
        lines,
        answers=engine.max_rows + engine.max_pending,
        max_body_bytes=settings.body_limit,
        wire=wire_named(settings.policy.wire),
        access=access,
        telemetry=telemetry,
    )
    return Supervisor(worker, server, lines, host=door.host, ending=ending, unix=unix)


def _hosts(door: Door, address: str) -> Hosts:
    if not door.keys and not is_loopback(address):
        say(f"note: whoever can reach {address} may use this server; `--api-key` asks for a key")
    return hosts_of(door.host, address, door.allow_hosts)
