"""waitress, set for one engine and many patient clients: enough threads, our envelope on its own refusals, room for
the next client whatever the others do, and an end that lets answers go out.

Longer than most files because all that leans on waitress's insides (read against 3.0.2) is kept in it and in
server_tasks.py.

Knows sockets and WSGI; knows no engine and no dialect. Cost: one thread for each answer under way.

Thread: any
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

from lattice_cli.serve.access import OPEN, Access
from lattice_cli.serve.lines import AppLines
from lattice_cli.serve.server_tasks import RAW_PER_BODY, AnswerTask, Parser, RefusalTask
from lattice_cli.serve.sockets import BACKLOG, connection_limit
from lattice_cli.serve.wire import Wire
from lattice_cli.serve.wire.openai import OpenAi

if TYPE_CHECKING:
    from lattice_cli.telemetry import Telemetry

log = logging.getLogger("lattice.serve")

SPARE_THREADS = 8  # for health, models, refusals: these never wait
HEADER_BYTES = 1 << 16
LINGER_S = 2.0
HEADERS_S = 20.0  # within which the head of a request must be here once it has begun
BODY_S = 300.0  # and all of it
STALL_S = 60.0  # in which a client must take something of what waits for it
LOOK_S = 5  # between two looks at who is late
LAST_LOOK_S = 0.005  # at what is unsent when the server ends: waitress tells nobody when its buffers are empty
EVICTED_SHARE = 8  # one of so many connections makes room when there are too many


class Channel(HTTPChannel):
    """A connection. After a refusal it lingers: it stops sending, and reads what the client still sends for a
    moment, because a socket closed with unread data takes the answer with it (RFC 9112, 9.6).
    """

    parser_class = Parser
    task_class = AnswerTask
    error_task_class = RefusalTask
    linger = False
    began_s: float | None = None  # when the request began that is not all here
    idle_since_s = 0.0
    _lingers_until_s: float | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        self.idle_since_s = time.monotonic()
        super().__init__(*args, **options)

    def late(self, now_s: float) -> bool:
        """A request that comes byte by byte holds no thread, but a place among the connections."""
        if self.request is None or self.began_s is None:
            return False
        return now_s - self.began_s > (BODY_S if self.request.headers_finished else HEADERS_S)

    def stalled(self) -> bool:
        """Nobody takes what waits here: a thread of ours may be waiting with it, and would for ever."""
        return self.total_outbufs_len > 0 and time.time() - self.last_activity > STALL_S

    def handle_close(self) -> None:
        if not self.linger or not self.connected or self.socket is None:
            super().handle_close()
            return
        self.linger = self.will_close = False
        self._lingers_until_s = time.monotonic() + LINGER_S
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            super().handle_close()

    def send(self, data: bytes, do_close: bool = True) -> int:
        try:
            return int(super().send(data, do_close=do_close))
        except AttributeError:
            # UPSTREAM: waitress 3.0.2 takes the socket away on the loop's thread while a task writes to it.
            if self.socket is not None:
                raise
            return 0

    def readable(self) -> bool:
        if self._lingers_until_s is None:
            return super().readable()
        if time.monotonic() > self._lingers_until_s:
            self.will_close = True
        return not self.will_close

    def received(self, data: bytes) -> bool:
        if self._lingers_until_s is not None:
            return False
        before = self.request
        taken: bool = super().received(data)
        if self.request is not before:
            self.began_s = None if self.request is None else time.monotonic()
        if self.requests:
            self.idle_since_s = time.monotonic()
        return taken


class Listener(TcpWSGIServer):
    """The listening end. A fault in one accept does not close it, and connections without a request keep nobody out:
    the longest idle make room.
    """

    channel_class = Channel
    lines: AppLines
    wire: Wire
    telemetry: Telemetry | None = None
    draining = False

    def handle_error(self) -> None:
        log.exception("a connection could not be accepted")

    def getsockname(self) -> tuple[str, Any]:
        if self.family == socket.AF_UNIX:
            return "localhost", 0
        name: tuple[str, Any] = super().getsockname()
        return name

    def set_socket_options(self, conn: socket.socket) -> None:
        if self.family != socket.AF_UNIX:
            super().set_socket_options(conn)

    def fix_addr(self, addr: Any) -> Any:
        return ("localhost", None) if self.family == socket.AF_UNIX else addr

    def readable(self) -> bool:
        connections: Any = self
        if len(connections._map) >= self.adj.connection_limit:
            self._make_room()
        return bool(super().readable())

    def maintenance(self, now: Any) -> None:
        super().maintenance(now)
        for channel in self._channels():
            if channel.late(time.monotonic()):
                channel.will_close = True
            elif channel.stalled():
                log.info("a client took nothing for %.0f s, and its connection is closed", STALL_S)
                channel.handle_close()  # at once: a socket that cannot be written to is not looked at again

    def _channels(self) -> list[Any]:
        active: Any = self.active_channels
        return list(active.values())

    def _make_room(self) -> None:
        """Closed by the loop when it comes to them, in this turn."""
        idle = [one for one in self._channels() if not one.requests and not one.total_outbufs_len]
        idle.sort(key=lambda one: one.idle_since_s)
        for channel in idle[: 1 + len(idle) // EVICTED_SHARE]:
            channel.will_close = True


class HttpServer:
    """Serves an application on a bound socket, on a thread of its own."""

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        lines: AppLines,
        *,
        answers: int,
        max_body_bytes: int,
        wire: Wire | None = None,
        access: Access = OPEN,
        telemetry: Telemetry | None = None,
    ) -> None:
        """`answers` are the most that can be under way at once; `wire` is how refusals are spelled; `access` says
        whose bodies are read.
        """
        adjustments: Any = Adjustments(
            sockets=[listener],
            threads=answers + SPARE_THREADS,
            channel_request_lookahead=1,  # a client that leaves is seen while its answer is made
            asyncore_use_poll=True,
            connection_limit=connection_limit(),
            backlog=BACKLOG,
            cleanup_interval=LOOK_S,
            max_request_header_size=HEADER_BYTES,
            max_request_body_size=max_body_bytes * RAW_PER_BODY,
            clear_untrusted_proxy_headers=False,
            log_socket_errors=False,
            ident="lattice",
        )
        adjustments.access = access
        for name in ("waitress", "waitress.queue"):  # it logs each client that leaves, and each wait for a thread
            logging.getLogger(name).setLevel(logging.ERROR)
        self._dispatcher = ThreadedTaskDispatcher()
        self._dispatcher.set_thread_count(adjustments.threads)
        self._map: dict[int, Any] = {}
        self._server: Any = Listener(
            app,
            self._map,
            _sock=listener,
            dispatcher=self._dispatcher,
            adj=adjustments,
            sockinfo=(listener.family, listener.type, listener.proto, listener.getsockname()),
            bind_socket=False,
        )
        self._server.lines = lines
        self._server.wire = wire or OpenAi()
        self._server.telemetry = telemetry
        self._thread = threading.Thread(target=self._run, name="lattice-http", daemon=True)
        self._stopping = False
        self.on_end: Callable[[], None] | None = None
        self.port: int = 0 if listener.family == socket.AF_UNIX else listener.getsockname()[1]

    def start(self) -> None:
        """Answer from now on. `on_end` is called if the thread ends without being asked to."""
        self._thread.start()

    def _run(self) -> None:
        try:
            self._server.run()
        finally:
            if not self._stopping and self.on_end is not None:
                self.on_end()

    def drain(self) -> None:
        """From now on every answer is the last of its connection."""
        self._server.draining = True

    def stop(self, timeout_s: float = 1.0) -> bool:
        """Let answers that are made go out, then close everything. False when threads had to be left behind."""
        self._stopping = True
        until_s = time.monotonic() + timeout_s
        self._dispatcher.set_thread_count(0)
        while (self._dispatcher.threads or self._unsent()) and time.monotonic() < until_s:
            time.sleep(LAST_LOOK_S)
        self._server.trigger.pull_trigger(lambda: wasyncore.close_all(self._map, ignore_all=True))
        self._thread.join(1.0)
        return not self._dispatcher.threads and not self._thread.is_alive()

    def _unsent(self) -> bool:
        return any(channel.total_outbufs_len for channel in list(self._server.active_channels.values()))
