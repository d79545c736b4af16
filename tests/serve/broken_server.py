"""A server process whose engine breaks at the first request; run by test_process.py.

    python -m tests.serve.broken_server [--exit-on-broken]

Thread: any
"""

from __future__ import annotations

import sys
from dataclasses import replace

from lattice_cli.console import fail
from lattice_cli.engine.engine import Engine
from lattice_cli.engine.open import OpenEngine
from lattice_cli.engine.worker import EngineWorker
from lattice_cli.errors import LatticeError
from lattice_cli.prompt.template import BARE_CHATML
from lattice_cli.serve.app import create_app
from lattice_cli.serve.lines import AppLines
from lattice_cli.serve.server import HttpServer
from lattice_cli.serve.settings import ServeSettings
from lattice_cli.serve.sockets import listen_on
from lattice_cli.serve.supervisor import Ending, Supervisor
from lattice_cli.settings import EngineSettings
from tests.engine.fake import CountingBackend
from tests.engine.letters import LETTERS


def main() -> int:
    settings, engine = ServeSettings(), EngineSettings()
    card = replace(LETTERS, chat_template=BARE_CHATML)
    backend = CountingBackend(faults=lambda rows: RuntimeError("no device"))
    worker = EngineWorker(lambda: OpenEngine(card, Engine(card, backend, engine)), engine)
    lines = AppLines.on_stdout()
    app = create_app(worker, settings, lines)
    server = HttpServer(app, listen_on("127.0.0.1", 0), lines, answers=40, max_body_bytes=settings.body_limit)
    ending = Ending(on_broken="--exit-on-broken" in sys.argv)
    try:
        Supervisor(worker, server, lines, host="127.0.0.1", ending=ending).run()
    except LatticeError as error:
        fail(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
