"""What answers at each path; three lines each, the work is elsewhere.

Thread: request
"""

from __future__ import annotations

import json
import time
from typing import Any

import falcon

from lattice_cli import __version__
from lattice_cli.engine.worker import EngineWorker, State
from lattice_cli.errors import BadRequest, BodyTooLarge, EngineUnavailable, ModelNotFound
from lattice_cli.serve import sse
from lattice_cli.serve.exchange import Admitted, Exchange, ready_card
from lattice_cli.serve.failures import CODES
from lattice_cli.serve.settings import MEBIBYTE
from lattice_cli.serve.wire import Dialect

Request = falcon.Request
Response = falcon.Response


def say(resp: Response, value: Any) -> None:
    """Answer with JSON in ASCII."""
    resp.content_type = falcon.MEDIA_JSON
    resp.data = json.dumps(value).encode("ascii") + b"\n"


class Generation:
    """POST: one dialect's way to ask for replies."""

    def __init__(self, exchange: Exchange, dialect: Dialect, max_body_bytes: int) -> None:
        self._exchange = exchange
        self._dialect = dialect
        self._max_body_bytes = max_body_bytes

    def on_post(self, req: Request, resp: Response) -> None:
        body = read_body(req, self._max_body_bytes)
        admitted = self._exchange.admit(self._dialect, body, req.context.visit)
        if admitted.ask.ignored:
            resp.set_header("X-Ignored-Fields", ", ".join(admitted.ask.ignored))
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


def read_body(req: Request, max_bytes: int) -> bytes:
    """The whole body. Raises: BodyTooLarge, or BadRequest for one that says it is no plain JSON.

    NOTE: a JSON content type is not asked for pedantry: a web page may send `text/plain` anywhere without
    asking, and must not be able to keep this machine busy.
    """
    media = (req.content_type or falcon.MEDIA_JSON).split(";")[0].strip().lower()
    if not (media.endswith(("/json", "+json"))):
        raise BadRequest("the body must be sent as `Content-Type: application/json`", status=415, code=CODES[415])
    if (req.get_header("Content-Encoding") or "identity").lower() != "identity":
        raise BadRequest("the body must not be compressed", status=415, code=CODES[415])
    if req.content_length is None:
        raise BadRequest("the request has neither a body nor a length of one", status=411, code=CODES[411])
    if req.content_length > max_bytes:
        raise too_large(max_bytes)
    return req.bounded_stream.read()


def too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {max_bytes / MEBIBYTE:g} MiB", hint="see `--max-body`")


class Models:
    """GET: the one model that is served."""

    def __init__(self, worker: EngineWorker) -> None:
        self._worker = worker
        self._created_s = int(time.time())

    def on_get(self, req: Request, resp: Response) -> None:
        say(resp, {"object": "list", "data": [self._entry()]})

    on_head = on_get

    def on_get_one(self, req: Request, resp: Response, model_id: str) -> None:
        entry = self._entry()
        if model_id != entry["id"]:
            raise ModelNotFound(
                f"the model {json.dumps(model_id[:200])} is not served here",
                param="model",
                hint=f"there is `{entry['id']}`",
            )
        say(resp, entry)

    on_head_one = on_get_one

    def _entry(self) -> dict[str, Any]:
        served_id = ready_card(self._worker).served_id
        return {"id": served_id, "object": "model", "created": self._created_s, "owned_by": "lattice"}


class Health:
    """GET: 200 when a request would be answered. Never waits."""

    def __init__(self, worker: EngineWorker) -> None:
        self._worker = worker

    def on_get(self, req: Request, resp: Response) -> None:
        state = self._worker.state
        if state is State.READY:
            say(resp, {"status": "ok"})
            return
        resp.status = falcon.HTTP_503
        resp.set_header("Retry-After", str(EngineUnavailable.retry_after_s))
        say(resp, {"status": state.value})

    on_head = on_get


class Root:
    """GET: what this is."""

    def __init__(self, endpoints: tuple[str, ...]) -> None:
        self._endpoints = endpoints

    def on_get(self, req: Request, resp: Response) -> None:
        say(
            resp,
            {"name": "lattice", "object": "engine", "version": __version__, "endpoints": list(self._endpoints)},
        )

    on_head = on_get
