"""A `lattice serve` process for tests, with the lines it says and a limit on every wait.

Thread: any
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx2

from tests.serve.stage import LIMIT_S, Raw

ROOT = Path(__file__).parent.parent.parent


class Process:
    """Started at once; killed at the end if it is still there."""

    def __init__(self, home: Path, *arguments: str, module: str = "lattice_cli", **environment: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("LATTICE_", "HF_"))}
        command = [sys.executable, "-m", module, *(("serve",) if module == "lattice_cli" else ()), *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**clean, "LATTICE_KERNELS": "off", "LATTICE_HOME": str(home), **environment},  # no half minute of g++
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._errors: list[bytes] = []
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._lines.put), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self._errors.append), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(stream: Any, keep: Any) -> None:
        for line in stream:
            keep(line)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.ended()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def line(self, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """The next `@@lattice` line."""
        try:
            said = self._lines.get(timeout=limit_s)
        except queue.Empty:
            raise AssertionError(f"no line in {limit_s} s; it said: {self.talk()}") from None
        assert said.startswith(b"@@lattice ")
        record: dict[str, Any] = json.loads(said.removeprefix(b"@@lattice "))
        return record

    def port(self) -> int:
        """Wait until it is ready."""
        ready = self.line(60)
        assert ready["ev"] == "ready", ready
        port: int = ready["port"]
        return port

    def client(self, port: int) -> httpx2.Client:
        return httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S)

    def raw(self, port: int) -> Raw:
        return Raw(port)

    def signal(self, number: signal.Signals) -> Process:
        self.process.send_signal(number)
        return self

    def ended(self, limit_s: float = LIMIT_S) -> int:
        """Its exit status."""
        try:
            status = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in {limit_s} s; it said: {self.talk()}") from None
        for thread in self._threads:
            thread.join(LIMIT_S)
        return status

    def talk(self) -> str:
        """What it said on stderr so far; all of it after its end."""
        return b"".join(self._errors).decode()

    def silent(self) -> bool:
        """Nothing more came on stdout."""
        return self._lines.empty()
