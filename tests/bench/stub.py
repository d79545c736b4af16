"""A stub of an OpenAI-compatible server that sends exactly the frames a test gives it.

Thread: any
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


def text(content: str) -> dict[str, Any]:
    """A content chunk."""
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}], "usage": None}


def finish(reason: str = "length") -> dict[str, Any]:
    """The chunk that ends a choice."""
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def usage(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    """The chunk of `stream_options.include_usage`."""
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **details}}


def stream(*frames: dict[str, Any] | str, done: bool = True) -> Reply:
    """Send the frames, a str being sent raw, as server-sent events."""

    def reply(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.end_headers()
        for frame in frames:
            line = frame if isinstance(frame, str) else f"data: {json.dumps(frame)}\n\n"
            handler.wfile.write(line.encode())
            handler.wfile.flush()
        if done:
            handler.wfile.write(b"data: [DONE]\n\n")

    return reply


def refuse(status: int, body: str) -> Reply:
    """A plain HTTP error."""

    def reply(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
        handler.send_response(status)
        handler.send_header("content-length", str(len(body.encode())))
        handler.end_headers()
        handler.wfile.write(body.encode())

    return reply


@dataclass(slots=True)
class Stub:
    """Where it listens and which bodies it was sent."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def serving(reply: Reply) -> Iterator[Stub]:
    """A server on a free port that answers every chat request with `reply`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            refuse(200, json.dumps({"object": "list", "data": [{"id": "stub/model"}]}))(self, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            stub.bodies.append(body)
            stub.headers.append({name.lower(): value for name, value in self.headers.items()})
            reply(self, body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub = Stub(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
