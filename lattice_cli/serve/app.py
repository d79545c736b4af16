"""The WSGI application: every route, and where failures go, on one screen.

Knows the framework; knows no web server, so it runs in process for tests.

Thread: any
"""

from __future__ import annotations

import logging
from typing import Any

import falcon

from lattice_cli.engine.worker import EngineWorker
from lattice_cli.errors import LatticeError
from lattice_cli.serve.exchange import Exchange
from lattice_cli.serve.failures import ClientGone, envelope_bytes, of_framework, unexpected
from lattice_cli.serve.lines import AppLines
from lattice_cli.serve.middleware import Visits
from lattice_cli.serve.resources import Generation, Health, Models, Root
from lattice_cli.serve.settings import ServeSettings
from lattice_cli.serve.wire import dialects

log = logging.getLogger("lattice.serve")

App = falcon.App[falcon.Request, falcon.Response]
READABLE = ("/v1/models", "/v1/models/{id}", "/health", "/")


def create_app(worker: EngineWorker, settings: ServeSettings, lines: AppLines) -> App:
    """The application over one worker, in whatever state that is."""
    spoken = dialects()
    routes = (*(f"POST {path}" for path in spoken), *(f"GET {path}" for path in READABLE))
    exchange = Exchange(worker, settings)
    models = Models(worker)

    app = falcon.App(middleware=[Visits(lines)])
    for path, dialect in spoken.items():
        app.add_route(path, Generation(exchange, dialect, settings.max_body_bytes))
    app.add_route("/v1/models", models)
    app.add_route("/v1/models/{model_id:path}", models, suffix="one")
    app.add_route("/health", Health(worker))
    app.add_route("/", Root((*spoken, *READABLE[:-1])))
    _answer_failures(app, routes)
    return app


def _answer_failures(app: App, routes: tuple[str, ...]) -> None:
    """Every exception becomes the envelope; none reaches the web server."""

    def ours(req: falcon.Request, resp: falcon.Response, error: LatticeError, params: Any) -> None:
        resp.status = error.status
        if error.retry_after_s is not None:
            resp.set_header("Retry-After", str(error.retry_after_s))
        resp.content_type = falcon.MEDIA_JSON
        resp.data = envelope_bytes(error)

    def framework(req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError, params: Any) -> None:
        resp.set_headers(error.headers or {})
        ours(req, resp, of_framework(error, req.method, req.path, routes), params)

    def gone(req: falcon.Request, resp: falcon.Response, error: ClientGone, params: Any) -> None:
        log.info("the client left id=%s", req.context.visit.request_id)
        resp.status = error.status

    def others(req: falcon.Request, resp: falcon.Response, error: Exception, params: Any) -> None:
        log.error("a request failed id=%s", req.context.visit.request_id, exc_info=error)
        ours(req, resp, unexpected(), params)

    app.add_error_handler(Exception, others)
    app.add_error_handler(falcon.HTTPError, framework)
    app.add_error_handler(LatticeError, ours)
    app.add_error_handler(ClientGone, gone)
