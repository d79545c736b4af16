"""One streamed answer of an OpenAI-compatible server, as the events that the engine would send.

Comments keep a connection alive; some servers end without `[DONE]`, some do not stream at all. What is in a chunk is
for remote_chunks.py. A stream that ends without an end is a failure, never a short answer.

Thread: any (its own thread reads; `begin` and `cancel` are for others)
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from sseclient import SSEClient

from lattice_cli.chat.remote_chunks import Heard
from lattice_cli.chat.remote_errors import unreachable, wrong_status
from lattice_cli.engine.worker import Cancel, Message, Ticket
from lattice_cli.errors import LatticeError, RemoteFailed
from lattice_cli.events import Event, Failed, Finished, Piece, Started, Timing
from lattice_cli.job import Job

if TYPE_CHECKING:
    from lattice_cli.chat.remote_server import Server

CONNECT_S = 20.0
# What reading a stream of another shape raises.
NO_STREAM = (msgspec.DecodeError, LookupError, TypeError, AttributeError, ValueError, RecursionError)
LONGEST_REFUSAL = 65_536


class RemoteStream:
    """One request. Its ticket gets every event; `Ticket.cancel` closes the connection at once."""

    def __init__(
        self,
        server: Server,
        body: dict[str, Any],
        job: Job,
        learn: Callable[[int], None] = lambda prompt_tokens: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server, self._body, self._job, self._learn, self._clock = server, body, job, learn, clock
        self._lock = threading.Lock()  # guards the end: there is one, whoever brings it
        self._ended = False
        self._sock: socket.socket | None = None  # the connection forgets it where an answer ends with it
        self._heard = Heard(server.host)
        self._first_s: float | None = None
        self._began_s = clock()
        self.ticket = Ticket([job], self._message)

    def begin(self) -> Ticket:
        """Ask, on a thread of its own."""
        threading.Thread(target=self._read, name="lattice-remote", daemon=True).start()
        return self.ticket

    def _message(self, message: Message) -> None:
        if isinstance(message, Cancel):
            self._end(Finished(self._job.id, "cancelled", self._heard.usage, self._timing()))
            self._hang_up()

    def _end(self, event: Finished | Failed) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self.ticket.deliver(event)

    def _tell(self, event: Event) -> None:
        with self._lock:
            if not self._ended:
                self.ticket.deliver(event)

    def _hang_up(self) -> None:
        """Wakes a thread that waits for bytes."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    # Below: the reading thread.

    def _read(self) -> None:
        host = self._server.host
        try:
            with contextlib.ExitStack() as opened:
                self._exchange(opened)
        except LatticeError as error:
            self._end(Failed(self._job.id, error))
        except (OSError, http.client.HTTPException) as error:
            self._end(Failed(self._job.id, self._broken(error)))
        except NO_STREAM as error:
            self._end(Failed(self._job.id, RemoteFailed(f"the answer of `{host}` is no OpenAI stream: {error}")))
        finally:  # nobody waits for a thread that is gone
            self._end(Failed(self._job.id, RemoteFailed(f"the answer of `{host}` could not be read")))

    def _exchange(self, opened: contextlib.ExitStack) -> None:
        response, refusal = self._ask(opened)
        if response.status == 400 and "stream_options" in self._body and b"stream_options" in refusal:
            del self._body["stream_options"]  # an older server: no usage then
            response, refusal = self._ask(opened)
        if response.status != 200:
            raise wrong_status(self._server.host, response.status, refusal)
        self._tell(Started(self._job.id, 0))
        if "application/json" in (response.headers.get("content-type") or ""):
            self._take(msgspec.json.decode(response.read()))  # a server that does not stream
            self._heard.done = True
        else:
            for event in SSEClient(_arrivals(response)).events():
                if event.data.strip() == "[DONE]":
                    self._heard.done = True
                    break
                if event.data.strip():
                    self._take(msgspec.json.decode(event.data), failed=event.event == "error")
        self._finish()

    def _ask(self, opened: contextlib.ExitStack) -> tuple[http.client.HTTPResponse, bytes]:
        """Connect within a time; then wait for as long as reading a prompt takes. The bytes are a refusal's."""
        connection = self._server.address.connect(CONNECT_S)
        opened.callback(connection.close)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self._server.host, error) from error
        self._sock = connection.sock
        self._sock.settimeout(None)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._ended:
            raise RemoteFailed("cancelled")
        headers = self._server.headers() | {"accept": "text/event-stream"}
        connection.request("POST", self._server.path("chat/completions"), msgspec.json.encode(self._body), headers)
        response = connection.getresponse()
        opened.callback(response.close)
        return response, response.read(LONGEST_REFUSAL) if response.status != 200 else b""

    def _take(self, chunk: Any, *, failed: bool = False) -> None:
        """Tell what is in one chunk. Raises: RemoteFailed, PromptTooLong for an error inside the stream."""
        for channel, text in self._heard.take(chunk, failed=failed):
            self._first_s = self._first_s or self._clock()
            self._tell(Piece(self._job.id, channel, text))

    def _finish(self) -> None:
        heard = self._heard
        if heard.reason is None and not heard.done:
            raise RemoteFailed(f"the answer of `{self._server.host}` broke off")
        if heard.usage.prompt_tokens:
            self._learn(heard.usage.prompt_tokens)
        self._end(Finished(self._job.id, heard.reason or "stop", heard.usage, self._timing()))

    def _timing(self) -> Timing:
        if self._first_s is None:
            return Timing()
        return Timing(first_token_s=self._first_s - self._began_s, decode_s=self._clock() - self._first_s)

    def _broken(self, error: Exception) -> RemoteFailed:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, http.client.IncompleteRead | http.client.RemoteDisconnected):
            reason = "the server closed it before the answer was whole"
        return RemoteFailed(f"the connection to `{self._server.host}` broke: {reason}")


def _arrivals(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body as it arrives, unlike plain iteration, which waits for whole lines of a buffer."""
    while data := response.read1(65_536):
        yield data
