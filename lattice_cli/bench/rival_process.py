"""A child process that is asked by lines of JSON and answers by them: started, waited for with patience, ended.

Its stdout is the answers, its stderr is kept for its last words. It has a session of its own, so that Ctrl-C reaches us
alone, and we end it with all that it started. Knows lines and processes; knows nothing of what is asked.

Thread: any
"""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from lattice_cli.bench.processes import end_tree, tree
from lattice_cli.console import say
from lattice_cli.errors import BenchError, LatticeError, UsageError

STILL_S = 30.0
GRACE_S = 5.0
LAST_S = 1.0
LAST_WORDS = 3


class ChildProcess:
    """Use as a context manager: it starts the command, and ends it and its descendants, also on Ctrl-C. `name` is what
    people call it.
    """

    def __init__(self, name: str, command: Sequence[str], still_s: float = STILL_S) -> None:
        self._name, self._command, self._still_s = name, command, still_s
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._talk = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process: subprocess.Popen[bytes] | None = None
        self._writer = threading.Thread()

    def __enter__(self) -> ChildProcess:
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._talk,
                start_new_session=True,
            )
        except OSError as error:
            self._talk.close()
            raise BenchError(f"`{self._command[0]}` cannot be started: {error.strerror}") from error
        threading.Thread(target=_read, args=(self._process.stdout, self._lines.put), daemon=True).start()
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        process = self._process
        assert process is not None and process.stdin is not None
        if kind is None:
            with suppress(OSError, subprocess.TimeoutExpired):
                process.stdin.close()
                process.wait(GRACE_S)
        end_tree(process)
        process.wait()
        if self._writer.ident is not None:
            self._writer.join()  # whoever read is gone, so nothing holds it
        with suppress(OSError):
            process.stdin.close()
        self._talk.close()

    def used_s(self) -> float:
        """Processor time of it and its descendants so far."""
        return sum(one.used_s or 0.0 for one in tree(self._process.pid)) if self._process else 0.0

    def ask(self, request: Mapping[str, Any], what: str, limit_s: float) -> dict[str, Any]:
        """The answer. While it does not come, what is waited for is said from time to time.

        Raises: UsageError for what it refuses, BenchError for a failure, rubbish, an early end, and no answer in
        `limit_s`.
        """
        assert self._process is not None
        line = json.dumps(request).encode() + b"\n"
        self._writer = threading.Thread(target=_write, args=(self._process.stdin, line), daemon=True)
        self._writer.start()  # a thread, because the child may never read
        began_s = said_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            if now_s - began_s >= limit_s:
                raise BenchError(f"{self._name} did not answer in {limit_s:g} s: {what}{self._last_words()}")
            if now_s - said_s >= self._still_s:
                say(f"{self._name}: {what}, for {now_s - began_s:.0f} s now")
                said_s = now_s
            try:
                wait_s = min(began_s + limit_s, said_s + self._still_s) - now_s
                told = self._understood(self._lines.get(timeout=max(wait_s, 0.01)))
            except queue.Empty:
                continue
            if "say" not in told:
                return told
            say(f"{self._name}: {told['say']}")

    def _understood(self, line: bytes | None) -> dict[str, Any]:
        if line is None:
            raise self._ended()
        try:
            told = json.loads(line)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise BenchError(f"{self._name} said what is no answer: `{line.decode('utf-8', 'replace').strip()[:100]}`")
        if "error" in told:
            kind: type[LatticeError] = UsageError if told.get("refused") else BenchError
            raise kind(str(told["error"]), param="--reference", hint=told.get("hint"))
        return told

    def _ended(self) -> BenchError:
        assert self._process is not None
        try:
            status = self._process.wait(LAST_S)
        except subprocess.TimeoutExpired:
            return BenchError(f"{self._name} closed its end and says no more{self._last_words()}")
        return BenchError(f"{self._name} ended with status {status} before it answered{self._last_words()}")

    def _last_words(self) -> str:
        self._talk.seek(0)
        lines = [line.strip() for line in self._talk.read().decode("utf-8", "replace").splitlines()]
        said = " ".join([line for line in lines if line][-LAST_WORDS:])
        return f" (its last words: {said})" if said else ""


def _read(stream: IO[bytes], put: Callable[[bytes | None], None]) -> None:
    for line in stream:
        put(line)
    put(None)
    stream.close()


def _write(stream: IO[bytes], line: bytes) -> None:
    try:
        stream.write(line)
        stream.flush()
    except (OSError, ValueError):  # it has ended, or we closed it: whoever waits for the answer will see
        return
