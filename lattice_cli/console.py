"""The one way to speak: stdout is data, stderr is talk, tables, progress and logging to stderr.

Knows streams and terminals; knows nothing of models or requests. rich is imported inside bodies, so
that `lattice --help` does not pay for it. Nothing here raises because a character cannot be encoded
or because stderr is closed: such characters are replaced and such talk is dropped.

Thread: any
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol, TextIO

from lattice_cli.errors import LatticeError, UsageError
from lattice_cli.harmless import harmless

if TYPE_CHECKING:
    from rich.console import Console

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
QUOTED = re.compile(r"`[^`]*`")
TEXT = "%(levelname)s %(name)s: %(message)s"
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


# Streams.


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person may be looking. Unlike rich, FORCE_COLOR does not make a pipe a terminal."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def is_live(stream: TextIO | None) -> bool:
    """Whether lines may be redrawn: a terminal that is not `TERM=dumb`."""
    return is_terminal(stream) and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def lenient(stream: TextIO | None) -> TextIO | None:
    """The same stream, set to replace what its encoding lacks instead of raising."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None and getattr(stream, "errors", None) in ("strict", "surrogateescape"):
        reconfigure(errors="replace")
    return stream


def _console(stream: TextIO | None, *, stderr: bool) -> Console:
    from rich.console import Console

    lenient(stream)
    return Console(stderr=stderr, force_terminal=is_terminal(stream), highlight=False, emoji=False, markup=False)


def stdout_console() -> Console:
    """A rich console on stdout; no markup, no emoji codes: what is printed is what was meant."""
    return _console(sys.stdout, stderr=False)


def stderr_console() -> Console:
    """A rich console on stderr, as `stdout_console`."""
    return _console(sys.stderr, stderr=True)


# Talk.


def say(text: str, *, aside: bool = False) -> None:
    """One line of talk on stderr; an `aside` is dim in a terminal. A terminal's rows end between words."""
    stream = lenient(sys.stderr)
    if stream is None:
        return
    marks = ("\x1b[2m", "\x1b[0m") if aside and _colours(stream) else ("", "")
    _write(stream, f"{marks[0]}{_wrapped(_shown(text, stream), stream)}{marks[1]}\n")


def fail(error: LatticeError) -> None:
    """The error's sentence on stderr and, apart from it, what to do. The caller picks the exit status."""
    stream = lenient(sys.stderr)
    if stream is None:
        return
    red, cyan, plain = ("\x1b[1;31m", "\x1b[1;36m", "\x1b[0m") if _colours(stream) else ("", "", "")
    sentence = _wrapped(f"error: {_shown(error.message, stream)}", stream).removeprefix("error:")
    _write(stream, f"{red}error:{plain}{sentence}\n")
    if error.hint:
        hint = _wrapped(f"hint: {_shown(error.hint, stream)}", stream).removeprefix("hint:")
        _write(stream, f"\n{cyan}hint:{plain}{hint}\n")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # nobody listens
        return


def _shown(text: str, stream: TextIO) -> str:
    return harmless(text) if is_terminal(stream) else text


def _wrapped(text: str, stream: TextIO) -> str:
    """The text in rows of the terminal's width; what stands in backticks is not torn, so that it can be copied."""
    if not is_terminal(stream):
        return text
    try:
        width = os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        width = 80
    kept = QUOTED.sub(lambda match: match[0].replace(" ", "\0"), text)
    lines = [
        row
        for line in kept.split("\n")
        for row in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
    ]
    return "\n".join(lines).replace("\0", " ")


def _colours(stream: TextIO | None) -> bool:
    return is_live(stream) and not os.environ.get("NO_COLOR")


# Tables: data.


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], file: TextIO | None = None) -> None:
    """Print rows under `columns`; on anything but a terminal as plain text, two spaces between columns.

    A terminal too narrow folds long cells; no text is cut. `file` None is stdout.
    """
    stream = lenient(sys.stdout if file is None else file)
    if stream is None:
        return
    if not is_terminal(stream):
        stream.writelines(line + "\n" for line in _aligned(columns, rows))
        return
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        grid.add_column(Text(column), overflow="fold")
    for row in rows:
        grid.add_row(*(Text(harmless(cell)) for cell in row))
    console = _console(stream, stderr=False)
    console.file = stream
    console.print(grid)


def _aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    from rich.cells import cell_len

    lines = [columns, *rows]
    widths = [max(cell_len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(cells).rstrip()


# A terminal that is not as a shell leaves it.

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor
ERASE = "\r\x1b[J"  # this row and what is below


@contextmanager
def suspendable(before: Callable[[], None], after: Callable[[], None]) -> Iterator[None]:
    """Run `before` when Ctrl-Z stops the process, and `after` when it goes on. May be nested: the inner one is first
    to give the terminal back, and last to take it.
    """
    outer = signal.getsignal(signal.SIGTSTP)
    if threading.current_thread() is not threading.main_thread() or outer in (signal.SIG_IGN, None):
        yield
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        before()
        if callable(outer):
            outer(signum, frame)
        else:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTSTP)  # stops here
        signal.signal(signal.SIGTSTP, stop)
        after()

    signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, outer)


def write_at_once(stream: TextIO | None, text: str) -> None:
    """Past the buffer, as a signal's handler must: it may have come in the middle of another write."""
    if stream is None:
        return
    try:
        os.write(stream.fileno(), text.encode())
    except (OSError, ValueError):
        return


def _cursor_lent() -> AbstractContextManager[None]:
    """For what hides the cursor on stderr."""
    stream = sys.stderr
    return suspendable(lambda: write_at_once(stream, ERASE + SHOW), lambda: write_at_once(stream, HIDE))


# Progress: talk.


class Progress(Protocol):
    """How far a transfer is."""

    def update(self, done_bytes: int, total_bytes: int | None) -> None:
        """`done_bytes` so far of `total_bytes`, None where the size is not known. Cheap; call it often."""


class PlainProgress:
    """A line at every tenth of the way, or every 30 s where the size is not known."""

    def __init__(self, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._label, self._clock = label, clock
        self._tenth, self._said_s = 0, clock()

    def update(self, done_bytes: int, total_bytes: int | None) -> None:
        tenth = 10 * done_bytes // total_bytes if total_bytes else 0
        if tenth <= self._tenth and self._clock() - self._said_s < 30:
            return
        self._tenth, self._said_s = max(tenth, self._tenth), self._clock()
        share = f" ({100 * done_bytes // total_bytes}% of {megabytes(total_bytes)})" if total_bytes else ""
        say(f"{self._label}: {megabytes(done_bytes)}{share}")


def megabytes(count: int) -> str:
    """Bytes as people read them, in powers of ten: `850 kB`, `103.6 MB`, `1.8 GB`."""
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1000:.0f} kB"


@contextmanager
def progress(label: str) -> Iterator[Progress]:
    """Show a transfer on stderr: a bar with size, speed and time left in a terminal, else rare lines."""
    if not is_live(sys.stderr):
        yield PlainProgress(label)
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with _cursor_lent(), RichProgress(*columns, console=stderr_console(), expand=True) as bar:
        task = bar.add_task(label, total=None)

        class Live:
            def update(self, done_bytes: int, total_bytes: int | None) -> None:
                bar.update(task, completed=done_bytes, total=total_bytes)

        yield Live()


@contextmanager
def status(label: str) -> Iterator[None]:
    """Say on stderr what takes a while: a spinner in a terminal, gone when it is over; else one line."""
    if not is_live(sys.stderr):
        say(label)
        yield
        return
    label = harmless(label)
    spinner = "dots" if (sys.stderr.encoding or "").lower().startswith("utf") else "line"
    with _cursor_lent(), stderr_console().status(label, spinner=spinner):
        yield


# Logging: talk for machines.


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever `sys.stderr` is at the moment, so that a live display can stand above it."""

    def emit(self, record: logging.LogRecord) -> None:
        if (stream := lenient(sys.stderr)) is not None:
            _write(stream, self.format(record) + "\n")


class _TextFormatter(logging.Formatter):
    """One record, one line, whatever a client put into its path; only a traceback of ours has more."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = CONTROLS.sub(lambda found: repr(found[0])[1:-1], record.message)
        return super().formatMessage(record)


class _JsonFormatter(logging.Formatter):
    """`fields` of a record are names of their own."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logging(level: str = "warning", fmt: str = "text", file: Path | None = None) -> None:
    """Log to `file`, None for stderr: our own loggers from `level` on, other libraries from warnings on.

    Raises: UsageError for a level or format that is not one of `LEVELS` and `FORMATS`, or a file that cannot be opened.
    """
    if level not in LEVELS:
        raise UsageError(f"`--log-level` is `{level}`, not one of {', '.join(LEVELS)}", param="--log-level")
    if fmt not in FORMATS:
        raise UsageError(f"`--log-format` is `{fmt}`, not one of {', '.join(FORMATS)}", param="--log-format")
    handler: logging.Handler = _StderrHandler()
    text = TEXT
    if file is not None:
        from lattice_cli.log_file import LogFile

        handler, text = LogFile(file), f"%(asctime)s {TEXT}"
    handler.setFormatter(_JsonFormatter() if fmt == "json" else _TextFormatter(text))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("lattice").setLevel(level.upper())
