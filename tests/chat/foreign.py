"""A server of foreign manners on a real socket: it notes what it is asked and answers with the bytes it is given.

Thread: any
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Foreign:
    """`frames` are sent one by one after a POST; after the last `gone` is waited for where `hangs`."""

    frames: list[bytes] = field(default_factory=list)
    status: int = 200
    kind: str = "text/event-stream"
    models: Any = None
    models_status: int = 200
    props: Any = None
    hangs: bool = False
    refuses: Mapping[str, Any] = field(default_factory=dict)  # a field of a body -> the JSON it is refused with
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    url: str = ""
    left: threading.Event = field(default_factory=threading.Event)
    waiting: threading.Event = field(default_factory=threading.Event)


def chunk(text: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    """One chunk of a chat completion; `more` goes beside `choices`."""
    delta = {} if text is None else {"content": text}
    return data({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


def data(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


DONE = data(b"[DONE]")


@contextmanager
def foreign(*frames: bytes, **how: Any) -> Iterator[Foreign]:
    """Such a server, listening."""
    server = Foreign(list(frames), **{"models": {"data": [{"id": "first"}, {"id": "second"}]}, **how})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"  # the end of an answer is the end of the connection

        def log_message(self, *words: object) -> None:
            """Quietly."""

        def do_GET(self) -> None:
            server.paths.append(self.path)
            server.headers.append(dict(self.headers))
            said = server.props if self.path.endswith("/props") else server.models
            self._send(server.models_status if said is not None else 404, "application/json", json.dumps(said).encode())

        def do_POST(self) -> None:
            server.paths.append(self.path)
            server.headers.append(dict(self.headers))
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.asked.append(body)
            for name, refusal in server.refuses.items():
                if name in body:
                    return self._send(400, "application/json", json.dumps(refusal).encode())
            self._send(server.status, server.kind, *server.frames)
            if server.hangs:
                server.waiting.set()
                while self.connection.recv(1):
                    pass
                server.left.set()
            return None

        def _send(self, status: int, kind: str, *parts: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.end_headers()
            with suppress(OSError):  # whoever asked may have heard enough
                for part in parts:
                    self.wfile.write(part)
                    self.wfile.flush()

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listening.server_address[1]}/v1"
    thread = threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()
