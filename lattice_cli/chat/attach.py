"""`@file` in a message: the file's text goes below it.

Knows texts and files; knows no terminal.

Thread: any
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lattice_cli.errors import UsageError

MOST_BYTES = 256 * 1024  # of all files of one message
WORD = re.compile(r'(?:(?<=\s)|^)@(?:"([^"\n]+)"|((?:\\.|[^\s\\])+))')
TRAILING = ".,;:!?)]}'\""


@dataclass(frozen=True, slots=True)
class Attached:
    """A file as it was put in: the name that was typed, and its text."""

    name: str
    text: str


def with_files(
    message: str, plain: frozenset[str] = frozenset(), folder: Path | None = None
) -> tuple[str, list[Attached]]:
    """The message with the texts of the files it names below it, and these.

    A word that names no file is a word (`@someone`); so are those in `plain`. Raises: UsageError for a file that is no
    text, is too large or cannot be read: nothing is sent then.
    """
    files: list[Attached] = []
    left = MOST_BYTES
    for word, name in _words(message):
        path = (folder or Path()) / Path(name).expanduser()
        if word in plain or any(file.name == name for file in files) or not _there(path):
            continue
        data = _read(path, name, left)
        left -= len(data)
        files.append(Attached(name, _text(data, name)))
    return "\n\n".join([message, *map(_shown, files)]), files


def _words(message: str) -> Iterator[tuple[str, str]]:
    """Each word that may name a file, as it stands there and as a name."""
    for match in WORD.finditer(message):
        name = match[1] or re.sub(r"\\(.)", r"\1", match[2])
        if match[1] is None and not _there(Path(name).expanduser()):
            name = name.rstrip(TRAILING) or name
        yield match[0], name


def at_words(text: str) -> frozenset[str]:
    """The words of a text that would name files, were they typed."""
    return frozenset(word for word, _ in _words(text))


def _there(path: Path) -> bool:
    try:
        return path.exists() and str(path) not in ("", ".")
    except (OSError, ValueError):
        return False


def _read(path: Path, name: str, most_bytes: int) -> bytes:
    """At most `most_bytes`. A file that is no plain one is never read: a pipe or a device may have no end."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise UsageError(
                    f"`@{name}` is no file that can be read whole", hint="name a text file, or `@` one of a folder's"
                )
            data = file.read(most_bytes + 1)
    except IsADirectoryError:
        raise UsageError(f"`@{name}` is a folder", hint="name a text file in it") from None
    except OSError as error:
        raise UsageError(f"`@{name}` cannot be read: {error.strerror}") from error
    if len(data) > most_bytes:
        raise UsageError(
            f"`@{name}` has more than {most_bytes:,} bytes; the files of a message may have {MOST_BYTES:,} together",
            hint="put the part that matters into a smaller file",
        )
    return data


def _text(data: bytes, name: str) -> str:
    data = data.removeprefix(codecs.BOM_UTF8)
    if b"\0" in data:
        raise UsageError(f"`@{name}` is binary, and only text can go into a message")
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise UsageError(
            f"`@{name}` is no UTF-8 text", hint=f"`iconv -f latin1 -t utf-8 {name} > copy.txt`, if it is Latin-1"
        ) from None


def _shown(file: Attached) -> str:
    """The text in a fence that it cannot close."""
    longest = max((len(run) for run in re.findall(r"`+", file.text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{file.name}:\n{fence}\n{file.text.rstrip()}\n{fence}"
