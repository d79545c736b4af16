"""A text in the user's own editor.

Knows files and processes; knows no terminal modes: whoever calls has lent the terminal.

Thread: any
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lattice_cli.console import is_terminal
from lattice_cli.errors import UsageError

USUAL = ("nano", "vi")


def edited(text: str, env: Mapping[str, str] = os.environ) -> str:
    """What is in the file when `$VISUAL`, `$EDITOR` or a usual editor ends. The file is its owner's alone, then gone.

    Raises: UsageError where there is no editor, or it ends with an error.
    """
    command = _command(env)
    with tempfile.TemporaryDirectory(prefix="lattice-") as folder:
        path = Path(folder) / "message.md"
        path.write_text(text, encoding="utf-8")
        try:
            # Answers may go to a file: an editor draws where the talk is.
            screen = None if is_terminal(sys.stdout) else sys.stderr
            status = subprocess.run([*command, str(path)], check=False, stdout=screen).returncode
        except OSError as error:
            raise UsageError(f"the editor `{command[0]}` cannot be run: {error.strerror}") from error
        if status != 0:
            raise UsageError(f"the editor `{command[0]}` ended with status {status}, so nothing was changed")
        return path.read_text(encoding="utf-8", errors="replace").rstrip()


def _command(env: Mapping[str, str]) -> list[str]:
    try:
        named = shlex.split(env.get("VISUAL") or env.get("EDITOR") or "")
    except ValueError as error:
        raise UsageError(f"`$EDITOR` cannot be read as a command: {error}") from error
    command = named or [name for name in USUAL if shutil.which(name)][:1]
    if not command:
        raise UsageError("there is no editor here", hint="name one: `export EDITOR=...`")
    return command
