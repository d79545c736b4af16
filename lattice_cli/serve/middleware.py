"""What holds for every request: an id, and one line when it is over.

Thread: request
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import falcon

from lattice_cli.serve.access import OPEN, Access
from lattice_cli.serve.lines import AppLines

if TYPE_CHECKING:
    from lattice_cli.telemetry import Telemetry

log = logging.getLogger("lattice.serve")

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
GONE = "waitress.client_disconnected"
CONVERTER = re.compile(r":\w+(?=})")  # how the framework reads a part of a path: nothing for who reads metrics


def request_id_of(offered: str | None) -> str:
    """The client's own id where it can stand in a header and a log, else a new one."""
    return offered if offered and REQUEST_ID.fullmatch(offered) else uuid.uuid4().hex


@dataclass(slots=True)
class Visit:
    """One request on its way; owned by its thread. What is known of it when it closes becomes its line.

    `tokens` are those of a finished answer, None where there is none; `gone` tells whether the client is
    still there, at the price of a look at an attribute; `template` is the route that answers, as it is written in
    app.py, None where there is none.
    """

    lines: AppLines
    request_id: str
    method: str
    route: str
    gone: Callable[[], bool] = lambda: False
    stream: bool = False
    status: int = 0
    tokens: int | None = None
    started_s: float = field(default_factory=time.monotonic)
    closed: bool = False
    telemetry: Telemetry | None = None
    template: str | None = None

    def __post_init__(self) -> None:
        if self.telemetry is not None:
            self.telemetry.opened()

    def close(self) -> None:
        """Say the line, once."""
        if self.closed:
            return
        self.closed = True
        duration_s = time.monotonic() - self.started_s
        dur_ms = round(duration_s * 1000, 1)
        if self.telemetry is not None:
            self.telemetry.answered(self.method, self.template, self.status, duration_s)
        self.lines.say(
            {
                "ev": "http_request",
                "method": self.method,
                "route": self.route,
                "status": self.status,
                "tokens": self.tokens,
                "dur_ms": dur_ms,
                "stream": self.stream,
            }
        )
        tokens = "" if self.tokens is None else f" {self.tokens} tokens"
        told = {"method": self.method, "route": self.route, "status": self.status, "tokens": self.tokens}
        log.info(
            "%s %s %d%s %.0f ms id=%s",
            self.method,
            self.route,
            self.status,
            tokens,
            dur_ms,
            self.request_id,
            extra={"fields": {**told, "dur_ms": dur_ms, "stream": self.stream, "request_id": self.request_id}},
        )


class Visits:
    """Falcon middleware: opens a `Visit` for each request and closes it with the answer.

    A streamed answer is closed by its stream.
    """

    def __init__(self, lines: AppLines, access: Access = OPEN, telemetry: Telemetry | None = None) -> None:
        self._lines = lines
        self._access = access
        self._telemetry = telemetry

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        req.context.visit = self._open(req)

    def process_response(self, req: falcon.Request, resp: falcon.Response, resource: Any, succeeded: bool) -> None:
        # Falcon refuses some methods before it calls `process_request`.
        visit: Visit = getattr(req.context, "visit", None) or self._open(req)
        resp.set_header("X-Request-Id", visit.request_id)
        visit.status = resp.status_code
        visit.template = None if req.uri_template is None else CONVERTER.sub("", req.uri_template)
        if resp.stream is None:
            visit.close()

    def _open(self, req: falcon.Request) -> Visit:
        return Visit(
            lines=self._lines,
            request_id=self._access.hidden(request_id_of(req.get_header("X-Request-Id"))),
            method=req.method,
            route=self._access.hidden(req.path)[:200],
            gone=req.env.get(GONE, lambda: False),
            telemetry=self._telemetry,
        )
