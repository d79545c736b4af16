"""Who takes part in a comparison: a server that runs, a command that starts one, a model that `lattice serve` serves.

Each is asked over HTTP by the same client, so what is compared is what a client sees.

Thread: any
"""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice_cli.bench.load import Question, Target, ask, first_model, read_target
from lattice_cli.bench.processes import end_tree, tree
from lattice_cli.bench.reading import Answer
from lattice_cli.errors import BenchError, UsageError

SERVE, PORT = "serve:", "{port}"
TRY_S = 0.3
LAST_WORDS = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """What a person typed, read: `command` starts a server, else one runs at `url`. `model` is how it is asked for;
    None is the first that it lists.
    """

    label: str
    command: tuple[str, ...] | None
    url: str
    model: str | None


def read_entry(text: str, model: str | None = None) -> Entry:
    """`http://...`, `serve:COMMAND {port} ...` or a model; of the first two `#NAME` at the end names the model.

    Raises: UsageError.
    """
    if text.startswith(("http://", "https://")):
        url, _, named = text.partition("#")
        return Entry(text, None, url, named or model)
    if not text.startswith(SERVE):
        command = (sys.executable, "-m", "lattice_cli", "serve", "--model", text, "--port", PORT)
        return Entry(text, command, "", None)
    line, _, named = text.removeprefix(SERVE).partition(" #")
    try:
        words = tuple(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"`{text}` is no command: {error}") from error
    if not words or not any(PORT in word for word in words):
        raise UsageError(f"`{text}` has no `{PORT}`", hint="say where the port goes, as in `serve:NAME --port {port}`")
    return Entry(text, words, "", named.strip() or model)


class Contender:
    """An entry that answers. Use as a context manager: it starts what must be started, waits until a question was
    answered, and ends the whole tree of processes afterwards, also on Ctrl-C.

    Raises from its beginning: BenchError when there is no answer within `start_s`.
    """

    def __init__(self, entry: Entry, timeout_s: float, start_s: float) -> None:
        self.entry, self._timeout_s, self._start_s = entry, timeout_s, start_s
        self._process: subprocess.Popen[bytes] | None = None
        self._talk = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self.model = entry.model or ""

    def __enter__(self) -> Contender:
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            end_tree(self._process)
        self._talk.close()

    def used_s(self) -> float:
        """Processor time of all its processes so far; 0 of a server that we did not start."""
        return sum(one.used_s or 0.0 for one in tree(self._process.pid)) if self._process else 0.0

    def _begin(self) -> None:
        url = self.entry.url
        if self.entry.command is not None:
            port = _free_port()
            words = [word.replace(PORT, str(port)) for word in self.entry.command]
            self._start(words)
            url = f"http://127.0.0.1:{port}"
        self.target: Target = read_target(url, self._timeout_s)
        until_s, reason = time.monotonic() + self._start_s, "nothing"
        while True:
            self.model = self.entry.model or first_model(self.target) or ""
            if self.model:
                outcome = ask(self.target, Question(self.model, (("user", "Hello"),), 2))
                if isinstance(outcome, Answer):
                    return
                reason = outcome.reason
            else:
                reason = "it lists no model"
            if self._process is not None and self._process.poll() is not None:
                raise BenchError(f"`{self.entry.label}` ended before it answered: {self._last_words()}")
            if time.monotonic() > until_s or self._process is None:
                raise BenchError(
                    f"`{self.entry.label}` does not answer: {reason}", hint="name the model with `#NAME` after it"
                )
            time.sleep(TRY_S)

    def _start(self, words: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=self._talk, stderr=self._talk, start_new_session=True
            )
        except OSError as error:
            raise BenchError(f"`{words[0]}` cannot be started: {error.strerror}") from error

    def _last_words(self) -> str:
        self._talk.seek(0)
        lines = self._talk.read().decode("utf-8", "replace").split("\n")
        return " ".join(line.strip() for line in [line for line in lines if line.strip()][-LAST_WORDS:]) or "no words"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def check_model(name: str) -> None:
    """Before anything is started. Raises: ModelNotFound and what else finding it raises."""
    from lattice_cli.model.locate import find_model
    from lattice_cli.settings import read_home

    if not name.startswith((SERVE, "http://", "https://")) and not Path(name).is_dir():
        find_model(name, read_home())
