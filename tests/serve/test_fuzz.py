"""Twenty thousand random requests, and a thousand clients that say nothing, against one real process.

A seed that fails is named with the command that replays it alone.

Thread: any
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lattice_cli.serve.server import BODY_S, HEADERS_S, Channel
from tests.serve.fuzz import ARGUMENTS, PATHS, run_case
from tests.serve.process import Process
from tests.serve.stage import LIMIT_S, body, eventually

pytestmark = pytest.mark.wire

CLIENTS = 8
EVERY = 500  # requests, then one that must be answered
WARM = 300  # requests, after which memory should have found its level
GROWTH_BYTES = 48 << 20
LINUX = Path("/proc/self/fd").exists()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    with Process(tmp_path, *ARGUMENTS) as one:
        yield one


class Watch:
    """What a process holds."""

    def __init__(self, process: Process, port: int) -> None:
        self._process, self._port, self._proc = process, port, Path(f"/proc/{process.process.pid}")

    def resident_bytes(self) -> int:
        return int((self._proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if LINUX else 0

    def descriptors(self) -> int:
        return len(list((self._proc / "fd").iterdir())) if LINUX else 0

    def threads(self) -> int:
        return len(list((self._proc / "task").iterdir())) if LINUX else 0

    def control(self) -> None:
        """It lives and makes tokens; nothing of what went before is still there."""
        assert self._process.process.poll() is None, f"it is dead: {self._process.talk()[-2000:]}"
        with self._process.client(self._port) as client:
            began_s = time.monotonic()
            while (answer := client.post(PATHS[0], json=body(max_tokens=2))).status_code == 429:
                assert time.monotonic() - began_s < 60, "no place was ever free"
                time.sleep(0.05)
            assert answer.status_code == 200, answer.text
            eventually(lambda: "\nlattice_rows 0.0\n" in client.get("/metrics").text)
            # The scrape itself; a client that only half left may be told so a moment later.
            eventually(lambda: "\nlattice_inflight_requests 1.0\n" in client.get("/metrics").text)


class Crowd:
    """Runs cases side by side, and knows which were under way."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._now: set[int] = set()
        self.faults: dict[int, str] = {}

    def run(self, seeds: Sequence[int]) -> None:
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(self._one, seeds))

    def _one(self, seed: int) -> None:
        with self._lock:
            self._now.add(seed)
        try:
            fault = run_case(seed, self._port)
        except OSError as error:  # nobody listens any more
            fault = f"{error}, while these ran: {sorted(self._now)}"
        with self._lock:
            self._now.discard(seed)
            if fault is not None:
                self.faults[seed] = fault

    def told(self) -> str:
        first = list(self.faults.items())[:5]
        seeds = " ".join(str(seed) for seed, _ in first)
        return f"{len(self.faults)} of the cases: {first}; again with: python -m tests.serve.fuzz {seeds}"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_request_kills_or_fills_the_server(process: Process, count: int) -> None:
    """The first thousand seeds are in every run."""
    port = process.port()
    watch, crowd = Watch(process, port), Crowd(port)
    watch.control()
    crowd.run(range(WARM))
    watch.control()
    before_bytes, before_descriptors, before_threads = watch.resident_bytes(), watch.descriptors(), watch.threads()
    for start in range(WARM, count, EVERY):
        crowd.run(range(start, min(start + EVERY, count)))
        watch.control()
        assert not crowd.faults, crowd.told()
    eventually(lambda: watch.descriptors() <= before_descriptors + 2, 60)
    eventually(lambda: watch.threads() <= before_threads)
    grown_bytes = watch.resident_bytes() - before_bytes
    assert grown_bytes < GROWTH_BYTES, f"{grown_bytes / 1e6:.0f} MB more than after {WARM} requests"
    assert process.signal(signal.SIGTERM).ended() == 0
    assert "Traceback" not in process.talk(), process.talk()[process.talk().index("Traceback") - 500 :][:6000]


def test_a_thousand_idle_connections_keep_nobody_out(process: Process) -> None:
    """Some say nothing, some half a request, some a body that does not come (slow loris)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1200:
        pytest.skip("this process may not open so many files")
    port = process.port()
    watch = Watch(process, port)
    watch.control()
    before = watch.descriptors()
    begun = (
        b"",
        b"GET /health HTTP/1.1\r\nHost: 127",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 999\r\n\r\n{",
    )
    with ExitStack() as stack:
        for number in range(1000):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S))
            one.sendall(begun[number % len(begun)])
        watch.control()
        crowd = Crowd(port)
        crowd.run(range(100))
        assert not crowd.faults, crowd.told()
        watch.control()
    eventually(lambda: watch.descriptors() <= before + 2, 60)
    assert process.signal(signal.SIGTERM).ended() == 0


@pytest.mark.slow
def test_a_request_that_comes_byte_by_byte_is_ended(process: Process) -> None:
    """Slow loris: it is never idle, so only a limit on the whole head ends it."""
    port = process.port()
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as client:
        began_s = time.monotonic()
        client.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ")
        client.settimeout(0.5)
        while time.monotonic() - began_s < 60:
            try:
                client.sendall(b"a")
                if not client.recv(100):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        assert HEADERS_S - 1 < time.monotonic() - began_s < HEADERS_S + 30
    Watch(process, port).control()


@pytest.mark.parametrize(
    ("request_", "age_s", "late"),
    [
        (None, 1e9, False),
        (SimpleNamespace(headers_finished=False), HEADERS_S - 1, False),
        (SimpleNamespace(headers_finished=False), HEADERS_S + 1, True),
        (SimpleNamespace(headers_finished=True), HEADERS_S + 1, False),
        (SimpleNamespace(headers_finished=True), BODY_S + 1, True),
    ],
)
def test_a_head_and_a_body_have_their_time(request_: Any, age_s: float, late: bool) -> None:
    channel: Any = SimpleNamespace(request=request_, began_s=5.0)
    assert Channel.late(channel, 5.0 + age_s) is late


def test_more_connections_than_the_server_may_have_make_room_for_the_next(tmp_path: Path) -> None:
    """With a limit of 256 open files there are 64 places: the longest idle are let go, a running reply is not."""
    import subprocess
    import sys

    from tests.serve.stage import REPLIES, Raw, write_script

    script = write_script(tmp_path, REPLIES)
    command = f"ulimit -n 256; exec {sys.executable} -m lattice_cli serve --model script:{script} --port 0"
    with subprocess.Popen(
        ["sh", "-c", command], stdout=subprocess.PIPE, env={**os.environ, "LATTICE_HOME": str(tmp_path)}
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().split(b":")[-1].strip(b"}\n"))
        try:
            with ExitStack() as stack:
                running = stack.enter_context(Raw(port)).post(body("tick", stream=True, max_tokens=80))
                running.until(b'"content":"tick "')
                for _ in range(150):
                    stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)).sendall(
                        b"GET /"
                    )
                with Raw(port) as client:
                    assert b"hello world" in client.post(body()).until(b"hello world")
                assert running.rest().count(b'"content":"tick "') == 80
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(20) == 0
