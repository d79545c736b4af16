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
