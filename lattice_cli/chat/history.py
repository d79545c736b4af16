"""Earlier messages, for the next chat too: a file of bounded size that only its owner may read.

Thread: any
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

MOST_BYTES = 1_000_000  # of the file when a chat begins; then the older half goes
LONGEST = 50_000  # characters of a message that is written down; a longer one is only for this chat


class _Kept(FileHistory):
    """A history that goes on when its file cannot be written any more."""

    def store_string(self, string: str) -> None:
        if len(string) > LONGEST:
            return
        with suppress(OSError):
            super().store_string(string.encode("utf-8", "replace").decode())

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []


def private_history(path: Path | None) -> History:
    """Earlier messages, in a file only its owner may read; in memory for None, and where there can be no such file."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        path.chmod(0o600)
        if path.stat().st_size > MOST_BYTES:
            _shorten(path)
    except OSError:
        return InMemoryHistory()
    return _Kept(str(path))


def _shorten(path: Path) -> None:
    """Keep the newer half, from the beginning of an entry on. A new file takes the old one's place at once."""
    data = path.read_bytes()[-MOST_BYTES // 2 :]
    start = data.find(b"\n# ")
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data[start:] if start >= 0 else b"")
    new.replace(path)
