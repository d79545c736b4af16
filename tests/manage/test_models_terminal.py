"""`lattice models` in a real terminal.

Thread: any
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.chat.terminal import LATTICE, Talk

pytestmark = [pytest.mark.wire, pytest.mark.timeout(60)]


def test_sixty_columns_are_enough(tmp_path: Path) -> None:
    """A real terminal of that width: no name is broken in two, no line is longer."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    environment = {**os.environ, "LATTICE_HOME": str(tmp_path), "LATTICE_MODEL_CACHE": "", "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "lattice_cli", "models"]
    subprocess.run(command, stdout=theirs, env=environment, timeout=30, check=True)
    shown = os.read(ours, 65536).decode().replace("\x1b[1m", "").replace("\x1b[0m", "")
    os.close(ours)
    os.close(theirs)
    assert [line.rstrip() for line in shown.splitlines()] == [
        "name          format     size     context  licence",
        "smollm2-135m  gguf Q4_1  98.4 MB  8192     Apache-2.0",
        "qwen3.5-0.8b  hf         1.8 GB   262144   Apache-2.0",
        "qwen3.5-2b    hf         4.6 GB   262144   Apache-2.0",
        "qwen3.5-4b    hf         9.3 GB   262144   Apache-2.0",
        "",
        "name          where",
        "smollm2-135m  lattice pull smollm2-135m",
        "qwen3.5-0.8b  lattice pull qwen3.5-0.8b",
        "qwen3.5-2b    lattice pull qwen3.5-2b",
        "qwen3.5-4b    lattice pull qwen3.5-4b",
    ]


@pytest.mark.parametrize(("key", "status", "said"), [("\x03", 130, ""), ("\x04", 0, "nothing"), ("\r", 0, "nothing")])
def test_a_question_that_is_not_answered_removes_nothing(tmp_path: Path, key: str, status: int, said: str) -> None:
    """Report 125: Ctrl-C and Ctrl-D said `Aborted!`, on the question's own row, and ended with status 1."""
    (tmp_path / "models" / "mine").mkdir(parents=True)
    command = (*LATTICE, "models", "rm", "mine")
    with Talk(tmp_path, command=command, columns=200, LATTICE_MODEL_CACHE=None) as talk:
        talk.sees("[y/N]")
        talk.send("perhaps\r")
        talk.sees("[y/N]", 2)
        talk.send(key)
        assert talk.ends() == status
        assert ("nothing was removed" in talk.rows()) == bool(said)
        assert "Aborted" not in "".join(talk.rows())
        assert sum(row.startswith("remove `") for row in talk.rows()) == 2
    assert (tmp_path / "models" / "mine").is_dir()
