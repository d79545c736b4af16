"""The real command in a real pseudo-terminal, its screen read through an emulator. Every wait has an end.

Thread: any
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from tests.chat.emulator import CuttingTerminal

LATTICE = [sys.executable, "-m", "lattice_cli"]
WAIT_S = 60.0
PROMPT = ">"
LAST = b"\0"  # which a terminal does not show


def script(folder: Path, *replies: dict[str, Any], **fields: Any) -> str:
    """A scripted model in `folder`, as `--model` takes it."""
    file = folder / "bot.json"
    file.write_text(json.dumps({"name": "bot", "replies": replies, **fields}), encoding="utf-8")
    return f"script:{file}"


def environment(home: Path, **changes: str | None) -> dict[str, str]:
    """This process's environment with a home of its own; None takes a variable away."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR")}
    wanted = {"LATTICE_HOME": str(home), "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **changes}
    return {k: v for k, v in {**kept, **wanted}.items() if v is not None}


class Talk:
    """`lattice chat` as a child with a controlling terminal."""

    def __init__(
        self,
        home: Path,
        *arguments: str,
        columns: int = 80,
        rows: int = 24,
        stdout: Path | None = None,
        command: Sequence[str] = (*LATTICE, "chat"),
        **env: str | None,
    ) -> None:
        self._master, slave = pty.openpty()
        self.terminal = CuttingTerminal(columns, rows)
        self.raw = b""
        self._prompts_used = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._set_size(columns, rows)
        out = stdout.open("wb") if stdout else None
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdin=slave,
            stdout=out or slave,
            stderr=slave,
            env=environment(home, **env),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self._slave = slave
        if out:
            out.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_S)
        os.close(self._slave)
        os.close(self._master)

    def send(self, text: str) -> None:
        """Type, without waiting for anything."""
        data = text.encode()
        while data:
            self._read(0.0)
            if select.select([], [self._master], [], WAIT_S)[1]:
                data = data[os.write(self._master, data[:512]) :]

    def line(self, text: str) -> None:
        """Type a message and Enter, once there is a prompt."""
        self.at_prompt()
        self.send(text)
        self.enter()

    def enter(self) -> None:
        """Send what was typed; the next prompt is another one."""
        self._prompts_used = self._prompts()
        self.send("\r")

    def paste(self, text: str) -> None:
        """What a terminal sends for a paste."""
        self.send(f"\x1b[200~{text}\x1b[201~")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Read until something holds. The screen is shown when it does not."""
        end_s = time.monotonic() + WAIT_S
        while not holds():
            self._read(0.1)
            if time.monotonic() > end_s or (self.process.poll() is not None and not self._read(0.2) and not holds()):
                raise AssertionError(f"no {what}; the screen:\n" + "\n".join(self.rows()))

    def sees(self, text: str, times: int = 1) -> None:
        """Read until `text` stands on the screen or in its scroll-back so often."""
        self.until(lambda: "\n".join(self.rows()).count(text) >= times, f"`{text}`")

    def at_prompt(self) -> None:
        """Read until the last row is an empty prompt that was not used yet."""
        self.until(lambda: self.rows()[-1:] == [PROMPT] and self._prompts() > self._prompts_used, "prompt")

    def _prompts(self) -> int:
        return sum(row.startswith(PROMPT) for row in self.rows())

    def ends(self) -> int:
        """The exit status, everything written read: what we write after it comes out behind it."""
        self.until(lambda: self.process.poll() is not None, "end")
        os.write(self._slave, LAST)
        self.until(lambda: self.raw.endswith(LAST), "last byte")
        self.raw = self.raw.removesuffix(LAST)
        return self.process.wait(WAIT_S)

    def rows(self) -> list[str]:
        """All that was ever shown, top to bottom."""
        return self.terminal.rows()

    def resize(self, columns: int, rows: int) -> None:
        self.terminal.resize(columns, rows)
        self._set_size(columns, rows)
        self.process.send_signal(signal.SIGWINCH)

    def echoes(self) -> bool:
        """Whether the terminal is as a shell left it."""
        lflag = termios.tcgetattr(self._slave)[3]
        return bool(lflag & termios.ECHO and lflag & termios.ICANON)

    def as_a_shell_would(self) -> None:
        """Set the terminal as a shell does when it takes it."""
        attributes = termios.tcgetattr(self._slave)
        attributes[3] |= termios.ECHO | termios.ICANON
        termios.tcsetattr(self._slave, termios.TCSANOW, attributes)

    def left_over(self) -> bytes:
        """What a shell would now read as commands."""
        attributes = termios.tcgetattr(self._slave)
        attributes[3] &= ~termios.ICANON
        termios.tcsetattr(self._slave, termios.TCSANOW, attributes)
        return os.read(self._slave, 4096) if select.select([self._slave], [], [], 0)[0] else b""

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self, timeout_s: float) -> bytes:
        if not select.select([self._master], [], [], timeout_s)[0]:
            return b""
        data = os.read(self._master, 65536)
        self.raw += data
        self.terminal.feed(self._decoder.decode(data))
        return data
