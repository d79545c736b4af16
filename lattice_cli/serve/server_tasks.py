"""What waitress does with one request, set to our manners: which bodies are read at all, refusals of its own in the
words of the wire, and connections that end when the server does. Read against waitress 3.0.2.

Thread: any (Parser: the server's loop); request (tasks)
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from waitress.parser import HTTPRequestParser
from waitress.task import ErrorTask, WSGITask
from waitress.utilities import BadRequest as MalformedRequest
from waitress.utilities import RequestEntityTooLarge

from lattice_cli.errors import BadRequest, LatticeError, Unauthorized
from lattice_cli.serve.access import CHALLENGE, Access
from lattice_cli.serve.failures import unexpected
from lattice_cli.serve.middleware import Visit, request_id_of
from lattice_cli.serve.wire import Wire

# Chunks of one byte take six on the wire; waitress's own limit counts those, so it lies that much higher.
RAW_PER_BODY = 8


class Parser(HTTPRequestParser):
    """Refuses a body by whose it is and by its own length, declared or counted, before the rest is read."""

    # UPSTREAM: waitress 3.0.2 asks for the path of a request that it could not read, when its client has left.
    command: Any = "-"
    path: Any = "-"
    refused: LatticeError | None = None
    _asked = False

    def received(self, data: bytes) -> int:
        head_comes = not self.headers_finished
        if head_comes and _is_no_request(self.header_plus + data):
            consumed, self.error, self.completed = len(data), MalformedRequest(""), True
        else:
            try:
                consumed = super().received(data)
            except ValueError:
                # UPSTREAM: waitress 3.0.2 gives a length of 5,000 digits to int(), which refuses more than 4,300.
                consumed, self.error, self.completed = len(data), MalformedRequest(""), True
        if head_comes and self.chunked and "CONTENT_LENGTH" in self.headers:
            # Two answers to where the body ends: a proxy may have believed the other one (RFC 9112, 6.1).
            self.error, self.completed = MalformedRequest(""), True
        if self._unwelcome() or (self.error is None and self._over()):
            self.error = RequestEntityTooLarge("")
            self.completed = True
        if self.error is not None:
            # UPSTREAM: waitress 3.0.2 would say `100 Continue` and read on.
            self.expect_continue = False
        return consumed

    def header(self, name: str) -> str | None:
        """As WSGI would have it."""
        value: str | None = self.headers.get(name.upper().replace("-", "_"))
        return value

    def _unwelcome(self) -> bool:
        """A stranger's body would be kept on disk until its end, only to be refused; nor is he told that it is too
        large. Without a body the application says so.
        """
        if self._asked or not self.headers_finished or not (self.chunked or self.content_length):
            return False
        self._asked = True
        adjustments: Any = self.adj
        access: Access = adjustments.access
        self.refused = access.refusal(self.command, self.path, self.header)
        return self.refused is not None

    def _over(self) -> bool:
        limit: int = self.adj.max_request_body_size // RAW_PER_BODY
        if self.chunked:
            return self.body_rcv is not None and len(self.body_rcv) > limit
        return self.content_length > limit


def _is_no_request(begun: bytes) -> bool:
    """Whether what came begins with no method. A client that speaks TLS would wait for as long as a head may take, and
    so would the person who wrote `https://`.
    """
    first = begun.lstrip()[:1]
    return bool(first) and not b"!" <= first <= b"~"


class AnswerTask(WSGITask):
    """An answer of the application. Once the server is leaving, each is the last on its connection."""

    def build_response_header(self) -> bytes:
        server: Any = self.channel.server
        if server.draining:
            # NOTE: said by the request, so that waitress says it once, in HTTP/1.0 too.
            request: Any = self.request
            request.headers["CONNECTION"] = "close"
        header: bytes = super().build_response_header()
        return header


class RefusalTask(ErrorTask):
    """An answer of waitress's own (413, 400, 431, 501) in the words of the wire, with our line."""

    def execute(self) -> None:
        server: Any = self.channel.server
        request: Any = self.request
        channel: Any = self.channel
        access: Access = channel.adj.access
        error = request.refused or self._translated(request.error)
        visit = Visit(
            server.lines,
            access.hidden(request_id_of(request.header("X-Request-Id"))),
            request.command,
            access.hidden(request.path)[:200],
            telemetry=server.telemetry,
        )
        page = server.wire.refusal(error)
        self.status = f"{page.status} {HTTPStatus(page.status).phrase}"
        self.content_length = len(page.body)
        self.response_headers = [("Content-Type", page.media_type), ("X-Request-Id", visit.request_id)]
        self.response_headers.extend(access.cross_origin(request.header).items())
        if isinstance(error, Unauthorized):
            self.response_headers.append(CHALLENGE)
        self.set_close_on_finish()
        channel.linger = True
        visit.status = page.status
        try:
            self.write(page.body)
        finally:
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
