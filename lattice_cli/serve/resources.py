"""What answers at each path; three lines each, the work is elsewhere.

Thread: request
"""

from __future__ import annotations

import json
import time

import falcon

from lattice_cli.engine.worker import EngineWorker, State
from lattice_cli.errors import EngineUnavailable, ModelNotFound, panics_told
from lattice_cli.serve import sse
from lattice_cli.serve.admission import Admission, Admitted, ready_card
from lattice_cli.serve.exchange import Exchange
from lattice_cli.serve.wire import Dialect, Page, Wire
from lattice_cli.serve.wire.fields import header_names
from lattice_cli.serve.wire.openai import as_page, model_entry

STALLED = "stalled"
Request = falcon.Request
Response = falcon.Response


def say(resp: Response, page: Page) -> None:
    """Answer with a page."""
    resp.status = page.status
    resp.content_type = page.media_type
    resp.data = page.body


class Generation:
    """POST: one dialect's way to ask for replies."""

    def __init__(
        self, admission: Admission, exchange: Exchange, wire: Wire, dialect: Dialect, max_body_bytes: int
    ) -> None:
        self._admission = admission
        self._exchange = exchange
        self._wire = wire
        self._dialect = dialect
        self._max_body_bytes = max_body_bytes

    def on_post(self, req: Request, resp: Response) -> None:
        body = read_body(req, self._wire, self._max_body_bytes)
        with panics_told("reading the request"):
            admitted = self._admission.admit(self._dialect, body, req.context.visit)
        if names := header_names(admitted.ask.ignored):
            resp.set_header("X-Ignored-Fields", ", ".join(names))
        if admitted.ask.stream:
            self._stream(admitted, resp)
        else:
            resp.content_type = falcon.MEDIA_JSON
            resp.data = self._exchange.whole(admitted)

    def _stream(self, admitted: Admitted, resp: Response) -> None:
        parts = self._exchange.stream(admitted)
        resp.content_type = sse.CONTENT_TYPE
        resp.set_headers(sse.HEADERS)

        def over() -> None:
            admitted.ticket.cancel()
            admitted.visit.close()

        resp.stream = sse.EventStream(parts, over)


def read_body(req: Request, wire: Wire, max_bytes: int) -> bytes:
    """The whole body. Raises: what the wire says of one that is too large, or not to be read at all."""
    wire.check_head(req.content_type, req.get_header("Content-Encoding"), req.content_length)
    if (req.content_length or 0) > max_bytes:
        raise wire.too_large(max_bytes)
    return req.bounded_stream.read()


class Models:
    """GET: the one model that is served, under its name and its aliases."""

    def __init__(self, worker: EngineWorker, wire: Wire, aliases: tuple[str, ...]) -> None:
        self._worker = worker
        self._wire = wire
        self._aliases = aliases
        self._started_s = int(time.time())

    def on_get(self, req: Request, resp: Response) -> None:
        say(resp, self._wire.models(self._names(), self._started_s))

    on_head = on_get

    def on_get_one(self, req: Request, resp: Response, model_id: str) -> None:
        names = self._names()
        if model_id not in names:
            raise ModelNotFound(
                f"the model {json.dumps(model_id[:200])} is not served here",
                param="model",
                hint=f"there is `{'`, `'.join(names)}`",
            )
        say(resp, as_page(model_entry(model_id, self._started_s)))

    on_head_one = on_get_one

    def _names(self) -> list[str]:
        return list(dict.fromkeys((ready_card(self._worker).served_id, *self._aliases)))


class Health:
    """GET: 200 when a request would be answered. Never waits, so it can tell of an engine that is stuck in a step."""

    def __init__(self, worker: EngineWorker, wire: Wire, stall_s: float) -> None:
        self._worker = worker
        self._wire = wire
        self._stall_s = stall_s

    def on_get(self, req: Request, resp: Response) -> None:
        state = self._worker.state
        stalled = state is State.READY and self._worker.turn_s() > self._stall_s
        page = self._wire.health(STALLED if stalled else state.value, ready=state is State.READY and not stalled)
        if page.status == 503:
            resp.set_header("Retry-After", str(EngineUnavailable.retry_after_s))
        say(resp, page)

    on_head = on_get


class Root:
    """GET: what this is."""

    def __init__(self, endpoints: tuple[str, ...], wire: Wire) -> None:
        self._page = wire.root(endpoints)

    def on_get(self, req: Request, resp: Response) -> None:
        say(resp, self._page)

    on_head = on_get
