"""A `lattice serve` process to ask: started for one policy, model and flags, and killed at the end.

Knows the command line, the ready line and nothing of requests.

Thread: any
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from lattice_cli.address import Address
from lattice_cli.errors import BenchError

START_S = 60.0
LINE_S = 3.0
TALK_LINES = 40


class ServerProcess:
    """One server on a free port of this machine, with a home of its own. Use as a context manager."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="lattice-parity-")
        # What the person set for their own servers must not change what is compared.
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LATTICE_SERVE_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lattice_cli", "serve", "--port", "0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"LATTICE_KERNELS": "off", **clean, "LATTICE_HOME": self._home.name, "LATTICE_OFFLINE": "1"},
        )
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._talk: list[str] = []
        readers = ((self._process.stdout, self._take_line), (self._process.stderr, self._take_talk))
        self._threads = [threading.Thread(target=self._read, args=reader, daemon=True) for reader in readers]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join(1)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self._home.cleanup()

    def ready(self) -> Address:
        """Wait until it answers. Raises: BenchError with its last words when it does not start."""
        line = self._next_line(START_S)
        if line is None or line.get("ev") != "ready":
            self._threads[1].join(1)
            words = " ".join(self._talk[-3:]).strip() or "it said nothing"
            raise BenchError(f"a server did not start: {words}")
        return Address("127.0.0.1", line["port"])

    def line(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        """The next `@@lattice` line that is `wanted`; else, after `LINE_S`, the last there was."""
        until_s, last = time.monotonic() + LINE_S, None
        while (left_s := until_s - time.monotonic()) > 0:
            line = self._next_line(left_s)
            if line is None or wanted(line):
                return line or last
            last = line
        return last

    def _next_line(self, limit_s: float) -> dict[str, Any] | None:
        try:
            return self._lines.get(timeout=limit_s)
        except queue.Empty:
            return None

    def _read(self, stream: IO[bytes], take: Callable[[str], None]) -> None:
        for line in stream:
            take(line.decode("utf-8", "replace").rstrip())
        if stream is self._process.stdout:
            self._lines.put(None)  # it ended

    def _take_line(self, line: str) -> None:
        if line.startswith("@@lattice "):
            self._lines.put(json.loads(line.removeprefix("@@lattice ")))

    def _take_talk(self, line: str) -> None:
        self._talk.append(line)
        del self._talk[:-TALK_LINES]


def arguments_of(policy: str | None, model: str, flags: Sequence[str]) -> list[str]:
    """The command line after `lattice serve --port 0`. `openai` is the default and is not named."""
    named = [] if policy in (None, "openai") else ["--policy", str(policy)]
    return ["--model", model, *named, *flags]


def script_file(folder: Path, number: int, script: dict[str, Any]) -> str:
    """A script written into `folder`, as `--model` names it."""
    path = folder / f"script-{number}.json"
    path.write_text(json.dumps(script), encoding="utf-8")
    return f"script:{path}"
