"""A stage for serve's tests: scripted models behind a worker, an application in process, a server on a socket.

Everything waits with a limit. Knows no pytest.

Thread: any
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from lattice_cli.engine.open import OpenEngine, open_engine
from lattice_cli.engine.worker import EngineWorker, Ticket
from lattice_cli.job import Job
from lattice_cli.model.card import ModelSource
from lattice_cli.serve.access import OPEN, Access
from lattice_cli.serve.app import create_app
from lattice_cli.serve.lines import AppLines
from lattice_cli.serve.server import HttpServer
from lattice_cli.serve.settings import ServeSettings
from lattice_cli.serve.sockets import listen_on
from lattice_cli.serve.wire import wire_named
from lattice_cli.settings import EngineSettings, read_home
from lattice_cli.telemetry import Telemetry

if TYPE_CHECKING:
    import openai

PATH = "/v1/chat/completions"
LIMIT_S = 30.0  # of a wait that fails; a machine that is busy with other things is slow

# Short intervals, so that no test waits for the real ones.
FAST = ServeSettings(commit_s=0.1, keepalive_s=0.05, poll_s=0.01)

HELLO = {"tokens": ["hello", " ", "world"]}
HANG = {"when": "hang", "tokens": ["a"], "then": "hang"}
TICK = {"when": "tick", "tokens": ["tick "], "then": "repeat", "token_ms": 20}
PREFILL = {"when": "prefill", "tokens": ["late"], "prefill_ms": 60_000}
MUTE = {"when": "mute", "tokens": [], "then": "hang"}
RAISE = {"when": "raise", "tokens": ["one ", "two"], "raise_at": 1}
REPLIES = [HANG, TICK, PREFILL, MUTE, RAISE, HELLO]


def body(content: str = "hi", **fields: Any) -> dict[str, Any]:
    """A request body of one user message."""
    return {"messages": [{"role": "user", "content": content}], **fields}


def eventually(happened: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait for something that has no event of its own."""
    until_s = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < until_s, "it did not happen in time"
        time.sleep(0.005)


def write_script(folder: Path, replies: list[dict[str, Any]], **fields: Any) -> Path:
    path = folder / "echo.json"
    path.write_text(json.dumps({"replies": replies, **fields}))
    return path


class CountingWorker(EngineWorker):
    """Tells how many submissions it has taken."""

    accepted = 0

    def submit(self, jobs: Sequence[Job]) -> Ticket:
        ticket = super().submit(jobs)
        self.accepted += 1
        return ticket


@dataclass
class Stage:
    """One worker and one application over it."""

    worker: CountingWorker
    app: Any
    lines: Path
    settings: ServeSettings
    telemetry: Telemetry

    def client(self) -> httpx2.Client:
        """HTTP without a socket."""
        return httpx2.Client(transport=httpx2.WSGITransport(app=self.app), base_url="http://lattice", timeout=LIMIT_S)

    def openai(self) -> openai.OpenAI:
        import openai  # 0.4 s, and the pure tests that use a stage need none

        return openai.OpenAI(base_url="http://lattice/v1", api_key="none", max_retries=0, http_client=self.client())

    def said_lines(self) -> list[dict[str, Any]]:
        """The `@@lattice` lines so far."""
        return [json.loads(line.removeprefix("@@lattice ")) for line in self.lines.read_text().splitlines()]


@contextmanager
def stage(
    replies: list[dict[str, Any]] | None = None,
    *,
    engine: EngineSettings = EngineSettings(max_rows=2, max_pending=2),
    settings: ServeSettings = FAST,
    opener: Callable[[], OpenEngine] | None = None,
    ready: bool = True,
    access: Access = OPEN,
    **script: Any,
) -> Iterator[Stage]:
    """A worker with a scripted model (or `opener`), ready unless told otherwise, and its application."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = ModelSource("echo", write_script(folder, replies or REPLIES, **script), "script")
        worker = CountingWorker(opener or (lambda: open_engine(source, read_home(), engine)), engine)
        descriptor = os.open(folder / "lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        telemetry = Telemetry()
        app = create_app(worker, settings, AppLines(descriptor), access=access, telemetry=telemetry)
        try:
            worker.start()
            if ready:
                worker.wait_ready(LIMIT_S)
            yield Stage(worker, app, folder / "lines", settings, telemetry)
        finally:
            assert worker.stop(LIMIT_S), "the worker did not end"
            os.close(descriptor)


@dataclass
class Served:
    """A stage behind a real socket."""

    stage: Stage
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=LIMIT_S)

    def openai(self) -> openai.OpenAI:
        import openai  # 0.4 s, and the pure tests that use a stage need none

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=LIMIT_S)

    def raw(self) -> Raw:
        return Raw(self.port)

    def idle(self) -> bool:
        return self.stage.worker.idle()


@contextmanager
def served(
    replies: list[dict[str, Any]] | None = None,
    *,
    engine: EngineSettings = EngineSettings(max_rows=2, max_pending=2),
    settings: ServeSettings = FAST,
    access: Access = OPEN,
    **options: Any,
) -> Iterator[Served]:
    """The same on 127.0.0.1 and a free port."""
    with stage(replies, engine=engine, settings=settings, access=access, **options) as one:
        listener = listen_on("127.0.0.1", 0)
        descriptor = os.open(one.lines, os.O_WRONLY | os.O_APPEND)
        server = HttpServer(
            one.app,
            listener,
            AppLines(descriptor),
            answers=engine.max_rows + engine.max_pending,
            max_body_bytes=settings.body_limit,
            wire=wire_named(settings.policy.wire),
            access=access,
            telemetry=one.telemetry,
        )
        server.start()
        try:
            yield Served(one, server.port)
        finally:
            one.worker.stop(LIMIT_S)  # frees the threads that wait for a reply
            stopped = server.stop(LIMIT_S)
            os.close(descriptor)
            assert stopped, "the server did not end"


class Raw:
    """A client that says exactly what it is told to, and can vanish at any byte."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        self.heard = b""

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> Raw:
        self.socket.sendall(data)
        return self

    def post(self, said: dict[str, Any], *headers: str) -> Raw:
        """A whole request for an answer."""
        data = json.dumps(said).encode()
        lines = [f"POST {PATH} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *headers]
        return self.send("\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data)

    def until(self, wanted: bytes, times: int = 1) -> bytes:
        """Read until `wanted` has come so many times; all that came so far. Keep-alives do not put the end off."""
        until_s = time.monotonic() + LIMIT_S
        while self.heard.count(wanted) < times:
            assert time.monotonic() < until_s, f"{wanted!r} did not come, but {self.heard[-2000:]!r}"
            data = self._some()
            assert data, f"closed before {wanted!r} came, after {self.heard[-2000:]!r}"
            self.heard += data
        return self.heard

    def rest(self) -> bytes:
        """Read to the end of the connection."""
        until_s = time.monotonic() + 2 * LIMIT_S
        while data := self._some():
            assert time.monotonic() < until_s, f"no end after {self.heard[-200:]!r}"
            self.heard += data
        return self.heard

    def _some(self) -> bytes:
        try:
            return self.socket.recv(65536)
        except TimeoutError:
            raise AssertionError(f"nothing came for {LIMIT_S} s after {self.heard[-2000:]!r}") from None

    def listen(self, seconds: float) -> None:
        """Read for a while, or until the end."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self.socket.settimeout(left_s)
            try:
                if not self.socket.recv(65536):
                    return
            except TimeoutError:
                return

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Vanish as a killed process does, with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.socket.close()


def with_settings(**changes: Any) -> ServeSettings:
    return replace(FAST, **changes)
