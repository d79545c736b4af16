"""waitress, set for one engine and many patient clients: enough threads, our envelope on its own refusals, a
socket that is bound before anything is loaded, and an end that lets answers go out.

Longer than most files because all that leans on waitress's insides (read against 3.0.2) is kept in it.

Knows sockets and WSGI; knows no engine and no dialect. Cost: one thread for each answer under way.

Thread: any (HttpServer); request (RefusalTask)
"""

from __future__ import annotations

import logging
import resource
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher
from waitress.utilities import RequestEntityTooLarge

from lattice_cli.errors import BadRequest, LatticeError
from lattice_cli.serve.failures import unexpected
from lattice_cli.serve.lines import AppLines
from lattice_cli.serve.middleware import Visit, request_id_of
from lattice_cli.serve.wire import Wire
from lattice_cli.serve.wire.openai import OpenAi

log = logging.getLogger("lattice.serve")

SPARE_THREADS = 8  # for health, models, refusals: these never wait
CONNECTIONS = 4096
SPARE_DESCRIPTORS = 128  # weights, logs, the interpreter
HEADER_BYTES = 1 << 16
BACKLOG = 1024
LINGER_S = 2.0


def listen_on(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. Raises: LatticeError in one sentence."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # NOTE: on Linux two sockets may bind one port; only one may listen.
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise LatticeError(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            hint="choose another with `--port`, or `--port 0` for a free one",
        ) from error
    return listener


def connection_limit() -> int:
    """How many clients may be connected; raises the process's soft limit on descriptors towards that number.

    A connection takes one descriptor, and another while a large body is spooled to disk.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS + SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        except (OSError, ValueError):  # macOS refuses more than the kernel's own limit
            log.info("the limit of %d open files could not be raised", soft)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS
    return max(16, min(CONNECTIONS, (soft - SPARE_DESCRIPTORS) // 2))


class Parser(HTTPRequestParser):
    """Refuses a body by its own length, declared or counted, before the rest is read."""

    def received(self, data: bytes) -> int:
        consumed = super().received(data)
        if self.error is None and self._over():
            self.error = RequestEntityTooLarge("")
            self.completed = True
        if self.error is not None:
            # UPSTREAM: waitress 3.0.2 would say `100 Continue` and read on.
            self.expect_continue = False
        return consumed

    def _over(self) -> bool:
        limit: int = self.adj.max_request_body_size // RAW_PER_BODY
        if self.chunked:
            return self.body_rcv is not None and len(self.body_rcv) > limit
        return self.content_length > limit


# Chunks of one byte take six on the wire; waitress's own limit counts those, so it lies that much higher.
RAW_PER_BODY = 8


class RefusalTask(ErrorTask):
    """An answer of waitress's own (413, 400, 431, 501) in the words of the wire, with our line."""

    def execute(self) -> None:
        server: Any = self.channel.server
        request: Any = self.request
        error = self._translated(request.error)
        visit = Visit(
            server.lines, request_id_of(None), getattr(request, "command", "-"), getattr(request, "path", "-")[:200]
        )
        page = server.wire.refusal(error)
        self.status = f"{page.status} {request.error.reason}"
        self.content_length = len(page.body)
        self.response_headers = [("Content-Type", page.media_type), ("X-Request-Id", visit.request_id)]
        self.set_close_on_finish()
        channel: Any = self.channel
        channel.linger = True
        self.write(page.body)
        visit.status = page.status
        visit.close()

    def _translated(self, refused: Any) -> LatticeError:
        if refused.code == 413:
            server: Any = self.channel.server
            wire: Wire = server.wire
            return wire.too_large(self.channel.adj.max_request_body_size // RAW_PER_BODY)
        if refused.code >= 500 and refused.code != 501:
            return unexpected()
        told = {431: "the headers are too large", 501: "this transfer encoding is not supported"}
        message = told.get(refused.code, "the request is not well-formed HTTP")
        return BadRequest(message, status=refused.code, code="malformed_http")


class Channel(HTTPChannel):
    """A connection. After a refusal it lingers: it stops sending, and reads what the client still sends for a
    moment, because a socket closed with unread data takes the answer with it (RFC 9112, 9.6).
    """

    parser_class = Parser
    error_task_class = RefusalTask
    linger = False
    _lingers_until_s: float | None = None

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

    def readable(self) -> bool:
        if self._lingers_until_s is None:
            return super().readable()
        if time.monotonic() > self._lingers_until_s:
            self.will_close = True
        return not self.will_close

    def received(self, data: bytes) -> bool:
        return False if self._lingers_until_s is not None else super().received(data)


class Listener(TcpWSGIServer):
    """The listening end. A fault in one accept does not close it."""

    channel_class = Channel
    lines: AppLines
    wire: Wire

    def handle_error(self) -> None:
        log.exception("a connection could not be accepted")


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
    ) -> None:
        """`answers` are the most that can be under way at once; `wire` is how refusals are spelled."""
        adjustments = Adjustments(
            sockets=[listener],
            threads=answers + SPARE_THREADS,
            channel_request_lookahead=1,  # a client that leaves is seen while its answer is made
            asyncore_use_poll=True,
            connection_limit=connection_limit(),
            backlog=BACKLOG,
            max_request_header_size=HEADER_BYTES,
            max_request_body_size=max_body_bytes * RAW_PER_BODY,
            clear_untrusted_proxy_headers=False,
            log_socket_errors=False,
            ident="lattice",
        )
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
        self._thread = threading.Thread(target=self._run, name="lattice-http", daemon=True)
        self._stopping = False
        self.on_end: Callable[[], None] | None = None
        self.port: int = listener.getsockname()[1]

    def start(self) -> None:
        """Answer from now on. `on_end` is called if the thread ends without being asked to."""
        self._thread.start()

    def _run(self) -> None:
        try:
            self._server.run()
        finally:
            if not self._stopping and self.on_end is not None:
                self.on_end()

    def stop(self, timeout_s: float = 1.0) -> bool:
        """Let answers that are made go out, then close everything. False when threads had to be left behind."""
        self._stopping = True
        until_s = time.monotonic() + timeout_s
        self._dispatcher.set_thread_count(0)
        while (self._dispatcher.threads or self._unsent()) and time.monotonic() < until_s:
            time.sleep(0.005)
        self._server.trigger.pull_trigger(lambda: wasyncore.close_all(self._map, ignore_all=True))
        self._thread.join(1.0)
        return not self._dispatcher.threads and not self._thread.is_alive()

    def _unsent(self) -> bool:
        return any(channel.total_outbufs_len for channel in list(self._server.active_channels.values()))
