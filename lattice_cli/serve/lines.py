"""The `@@lattice {json}` lines on stdout that a program which started us reads.

A line is written whole or not at all, and nobody waits for a reader: a pipe that is closed ends the lines, one
that is full loses them.

Thread: any
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from typing import Any

PATIENCE_MS = 100


class AppLines:
    """Owns one file descriptor for its lines; -1 is none. Blocks for at most `PATIENCE_MS`, and once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._patience_ms = PATIENCE_MS

    @classmethod
    def on_stdout(cls) -> AppLines:
        """Around Python's own buffer, so that one system call is one line."""
        try:
            return cls(sys.stdout.fileno())
        except (AttributeError, OSError, ValueError):  # closed, or not a file
            return cls(-1)

    def say(self, record: dict[str, Any]) -> None:
        """Write one line. Never raises."""
        line = b"@@lattice %b\n" % json.dumps(record, separators=(",", ":")).encode("ascii")
        with self._lock:
            try:
                self._write(line)
            except OSError:  # nobody reads
                self._descriptor = -1

    def _write(self, line: bytes) -> None:
        while line and self._descriptor >= 0:
            if not self._has_room():
                return
            line = line[os.write(self._descriptor, line) :]

    def _has_room(self) -> bool:
        """A pipe that polls as writable takes PIPE_BUF bytes (at least 512) without blocking: pipe(7)."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        ready = bool(poll.poll(self._patience_ms))
        self._patience_ms = PATIENCE_MS if ready else 0
        return ready

    def ready(self, port: int, unix_socket: str | None = None) -> None:
        """The model is loaded and requests are answered on `port`, or at the path of a socket."""
        self.say({"ev": "ready", "port": port} if unix_socket is None else {"ev": "ready", "unix_socket": unix_socket})
