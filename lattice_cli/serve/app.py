"""The WSGI application: every route, and where failures go, on one screen.

Knows the framework; knows no web server, so it runs in process for tests.

Thread: any
"""

from __future__ import annotations

import logging
from typing import Any

import falcon

from lattice_cli.engine.worker import EngineWorker
from lattice_cli.errors import EngineFault, LatticeError
from lattice_cli.serve.access import OPEN, Access
from lattice_cli.serve.admission import Admission
from lattice_cli.serve.exchange import Exchange
from lattice_cli.serve.failures import ClientGone, of_framework, unexpected
from lattice_cli.serve.guard import Guard
from lattice_cli.serve.lines import AppLines
from lattice_cli.serve.metrics import Metrics
from lattice_cli.serve.middleware import Visits
from lattice_cli.serve.resources import Generation, Health, Models, Root, say
from lattice_cli.serve.settings import ServeSettings
from lattice_cli.serve.token_resources import Tokens
from lattice_cli.serve.wire import Wire, wire_named
from lattice_cli.telemetry import Telemetry

log = logging.getLogger("lattice.serve")

App = falcon.App[falcon.Request, falcon.Response]
MODEL_PAGE = "/v1/models/{id}"
TOKEN_PATHS = ("/tokenize", "/detokenize")
METRICS = "/metrics"
READABLE = ("/v1/models", MODEL_PAGE, "/health", METRICS, "/")


def create_app(
    worker: EngineWorker,
    settings: ServeSettings,
    lines: AppLines,
    *,
    access: Access = OPEN,
    telemetry: Telemetry | None = None,
) -> App:
    """The application over one worker, in whatever state that is. `telemetry` hears all of the worker's events."""
    telemetry = telemetry or Telemetry()
    worker.watch = telemetry.heard
    wire = wire_named(settings.policy.wire)
    spoken = wire.dialects()
    # NOTE: metrics are of the operator, so they are there under every policy; a twin does not speak of them.
    readable = [path for path in READABLE if path not in (MODEL_PAGE, METRICS) or settings.policy.model_pages]
    counted = TOKEN_PATHS if settings.policy.token_routes else ()
    routes = (*(f"POST {path}" for path in (*spoken, *counted)), *(f"GET {path}" for path in readable))
    admission, exchange = Admission(worker, settings), Exchange(settings)
    models = Models(worker, wire, settings.aliases)

    middleware: list[Any] = [Visits(lines, access, telemetry), Guard(access)]
    app = falcon.App(middleware=middleware)
    for path, dialect in spoken.items():
        app.add_route(path, Generation(admission, exchange, wire, dialect, settings.body_limit))
    tokens = Tokens(admission, wire, settings.body_limit)
    for path in counted:
        app.add_route(path, tokens, suffix=path[1:])
    app.add_route("/v1/models", models)
    if settings.policy.model_pages:
        app.add_route("/v1/models/{model_id:path}", models, suffix="one")
    app.add_route("/health", Health(worker, wire, settings.stall_s))
    app.add_route(METRICS, Metrics(worker, telemetry))
    app.add_route("/", Root((*spoken, *counted, *readable[:-1]), wire))
    _answer_failures(app, routes, wire)
    return app


def _answer_failures(app: App, routes: tuple[str, ...], wire: Wire) -> None:
    """Every exception becomes a refusal in the words of the wire; none reaches the web server."""

    def ours(req: falcon.Request, resp: falcon.Response, error: LatticeError, params: Any) -> None:
        if isinstance(error, EngineFault):
            log.warning("a reply failed: %s id=%s", error.message, req.context.visit.request_id)
        refuse(resp, error)

    def refuse(resp: falcon.Response, error: LatticeError) -> None:
        if error.retry_after_s is not None:
            resp.set_header("Retry-After", str(error.retry_after_s))
        say(resp, wire.refusal(error))

    def framework(req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError, params: Any) -> None:
        resp.set_headers(error.headers or {})
        refuse(resp, of_framework(error, req.method, req.path, routes))

    def gone(req: falcon.Request, resp: falcon.Response, error: ClientGone, params: Any) -> None:
        log.info("the client left id=%s", req.context.visit.request_id)
        resp.status = error.status

    def others(req: falcon.Request, resp: falcon.Response, error: Exception, params: Any) -> None:
        log.error("a request failed id=%s", req.context.visit.request_id, exc_info=error)
        refuse(resp, unexpected())

    app.add_error_handler(Exception, others)
    app.add_error_handler(falcon.HTTPError, framework)
    app.add_error_handler(LatticeError, ours)
    app.add_error_handler(ClientGone, gone)
