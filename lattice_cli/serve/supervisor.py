"""The life of `lattice serve`: answer at once, load, say ready, wait for an end, let go in order.

One mailbox takes everything that can happen, so that the main thread waits in one place. It is a SimpleQueue
because a signal handler may put into that one while the same thread waits on it; an Event would lock up.

Thread: any (the main thread runs it)
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
from dataclasses import dataclass
from types import FrameType

from lattice_cli.console import say
from lattice_cli.engine.worker import EngineWorker
from lattice_cli.errors import EngineFault, LatticeError
from lattice_cli.model.card import ModelCard
from lattice_cli.serve.lines import AppLines
from lattice_cli.serve.server import HttpServer
from lattice_cli.serve.sockets import UnixPlace

log = logging.getLogger("lattice.serve")

STOP_S = 3.0  # one step of any model we serve, and some
LOAD_STOP_S = 0.3  # a load cannot be interrupted: it is left behind
TWICE_STATUS = 130


@dataclass(frozen=True, slots=True)
class Ready:
    card: ModelCard


@dataclass(frozen=True, slots=True)
class Broken:
    """The load failed, or later the engine did."""

    error: LatticeError


@dataclass(frozen=True, slots=True)
class Signalled:
    number: int


@dataclass(frozen=True, slots=True)
class HttpEnded:
    pass


Mail = Ready | Broken | Signalled | HttpEnded


@dataclass(frozen=True, slots=True)
class Ending:
    """`drain_s`: how long running replies may go on, `interrupt_s` at most where a person waits for it (SIGINT);
    `on_broken`: a broken engine ends the process; without `hangs_up` a SIGHUP does nothing, because the log that it
    is about looks after itself.
    """

    drain_s: float = 30.0
    on_broken: bool = False
    interrupt_s: float = 3.0
    hangs_up: bool = True

    def after(self, number: int) -> float:
        """Seconds to drain after a signal."""
        return min(self.drain_s, self.interrupt_s) if number == signal.SIGINT else self.drain_s


class Supervisor:
    """Runs one worker and one server to their end."""

    def __init__(
        self,
        worker: EngineWorker,
        server: HttpServer,
        lines: AppLines,
        *,
        host: str,
        ending: Ending,
        unix: UnixPlace | None = None,
    ) -> None:
        self._worker = worker
        self._server = server
        self._lines = lines
        self._host = f"[{host}]" if ":" in host else host
        self._ending = ending
        self._unix = unix
        self._mailbox: queue.SimpleQueue[Mail] = queue.SimpleQueue()
        self._signalled: int | None = None

    def run(self) -> None:
        """Return when a signal asked for the end and everything has ended. Blocks the main thread.

        Does not return, but leaves the process with status 0, when a thread had to be left behind.

        Raises: what the load raised; EngineFault when the server or (with `on_broken`) the engine is broken.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        if not self._ending.hangs_up:
            signal.signal(signal.SIGHUP, lambda number, frame: None)
        self._worker.on_broken = lambda error: self._mailbox.put(Broken(error))
        self._server.on_end = lambda: self._mailbox.put(HttpEnded())
        self._server.start()
        self._worker.start()
        threading.Thread(target=self._await_ready, name="lattice-ready", daemon=True).start()
        try:
            while not self._handled(self._mailbox.get()):
                pass
        except LatticeError:
            self._end(drain_s=0)
            raise
        assert self._signalled is not None
        self._leave(self._end(self._ending.after(self._signalled)))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first asks for an end; the second is one."""
        if self._signalled is not None:
            self._remove()
            os._exit(TWICE_STATUS)
        self._signalled = number
        self._mailbox.put(Signalled(number))

    def _await_ready(self) -> None:
        try:
            self._mailbox.put(Ready(self._worker.wait_ready()))
        except LatticeError as error:  # also told by `on_broken`, or the worker was stopped
            log.debug("the model did not become ready: %s", error.message)

    def _handled(self, mail: Mail) -> bool:
        """True when it is time to end."""
        match mail:
            case Ready(card):
                for note in card.notes:
                    say(note)
                where = f"http://{self._host}:{self._server.port}/v1" if self._unix is None else f"`{self._unix.path}`"
                say(f"serving `{card.served_id}` on {where} (Ctrl-C ends it)")
                self._lines.ready(self._server.port, None if self._unix is None else str(self._unix.path))
            case Broken(error):
                if self._worker.card is None or self._ending.on_broken:
                    raise error
                log.error("the engine is broken: %s", error.message)
            case HttpEnded():
                raise EngineFault("the HTTP server ended by itself")
            case Signalled(number):
                log.info("%s: no new requests from now on", signal.Signals(number).name)
                return True
        return False

    def _end(self, drain_s: float) -> bool:
        """Refuse new work, let the running finish for `drain_s`, cancel the rest. False: threads are left behind."""
        loading = self._worker.card is None
        self._worker.drain()
        self._server.drain()
        self._worker.wait_idle(drain_s)
        joined = self._worker.stop(LOAD_STOP_S if loading else STOP_S)
        stopped = self._server.stop()
        self._remove()
        return stopped and joined

    def _remove(self) -> None:
        if self._unix is not None:
            self._unix.remove()

    def _leave(self, clean: bool) -> None:
        """A thread inside mlx must not meet the interpreter's end: it aborts the process."""
        if clean:
            return
        log.info("leaving a thread behind")
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(0)
