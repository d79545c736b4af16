"""A log in a file that others rotate: made for its owner only, and opened anew when it was moved away.

Knows files; knows no formats. A disk that is full or gone costs lines and nothing else.

Thread: any
"""

from __future__ import annotations

import io
import logging
import os
from logging.handlers import WatchedFileHandler
from pathlib import Path

from lattice_cli.errors import UsageError

OWNER_ONLY = 0o600


class LogFile(WatchedFileHandler):
    """Appends to `path`; before each line it looks whether that is still the same file, so that logrotate needs
    neither `copytruncate` nor a signal. Raises: UsageError when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            super().__init__(path, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UsageError(
                f"cannot write the log to `{path}`: {error.strerror or error}",
                param="--log-file",
                hint="name a file in a folder that this user may write to",
            ) from error

    def _open(self) -> io.TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY)
        return open(descriptor, "a", encoding=self.encoding, errors=self.errors)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the folder is gone, or nothing more fits
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Nothing: a server does not end, nor fill stderr, because its log cannot be written."""
