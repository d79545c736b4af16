"""One file over HTTP, resumed where the last attempt stopped, verified, then put in place by a rename.

Knows ranges and checksums; knows nothing of models. Invariant: `target` exists only whole and verified;
everything else is in its part file.

Thread: any
"""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from lattice_cli.errors import FetchFailed
from lattice_cli.model.connection import REFUSED, UNREACHABLE, Link, open_url, unreachable_reason

CHUNK_BYTES = 1 << 18
ATTEMPTS = 4  # in a row without a new byte
BUSY = frozenset({408, 429, 500, 502, 503, 504})


def download(
    link: Link,
    target: Path,
    part: Path,
    progress: Callable[[int], None] = lambda done_bytes: None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Fetch `link` into `part`, verify it, rename it to `target` (same file system). Blocks.

    `progress` is told the bytes that are here, those of earlier attempts included. A dropped
    connection or a busy server is tried again; interrupted, `part` stays and a next call goes on.
    Raises: FetchFailed.
    """
    resumed = part.exists() and part.stat().st_size > 0
    for _ in range(2 if resumed else 1):  # a stale part may spoil the sum once; a fresh one may not
        with part.open("ab") as file:
            arrived = _Part(file, part.stat().st_size, link)
            _receive(link, arrived, progress, pause)
            file.flush()
            os.fsync(file.fileno())
        if arrived.is_right():
            os.replace(part, target)
            return
        part.unlink()
    raise FetchFailed(
        f"`{target.name}` from `{link.host}` does not match its checksum, so it was thrown away",
        hint="pull again; if it happens again, the server or a proxy on the way gives another file",
    )


class _Part:
    """The bytes that have arrived, with their running checksum. Owned by one download."""

    def __init__(self, file: IO[bytes], nbytes: int, link: Link) -> None:
        self.file, self.nbytes, self.link = file, 0, link
        self.digest = _digest(link)
        if link.nbytes is not None and nbytes > link.nbytes:
            self.restart()
        elif nbytes:
            with open(file.name, "rb") as old:  # PERF: 0.06 s for 93 MB
                while block := old.read(CHUNK_BYTES):
                    self.digest.update(block)
            self.nbytes = nbytes

    def restart(self) -> None:
        self.file.truncate(0)
        self.nbytes, self.digest = 0, _digest(self.link)

    def append(self, block: bytes) -> None:
        try:
            self.file.write(block)
        except OSError as error:  # told apart here from the network's errors
            raise FetchFailed(f"cannot write `{self.file.name}`: {error.strerror or error}") from error
        self.digest.update(block)
        self.nbytes += len(block)

    def is_right(self) -> bool:
        checksum = (self.link.checksum or "").rpartition(":")[2]
        return self.link.nbytes in (None, self.nbytes) and checksum in ("", self.digest.hexdigest())


def _digest(link: Link) -> Any:  # hashlib names no public type
    if (link.checksum or "").startswith("git-sha1:"):
        return hashlib.sha1(b"blob %d\0" % (link.nbytes or 0), usedforsecurity=False)
    return hashlib.sha256()


def _receive(link: Link, part: _Part, progress: Callable[[int], None], pause: Callable[[float], None]) -> None:
    """Ask for what is missing until all is here, at most `ATTEMPTS` times in a row without a new byte."""
    failures = 0
    progress(part.nbytes)
    while True:
        before = part.nbytes
        try:
            if link.nbytes is not None and part.nbytes == link.nbytes:
                return
            if _one_answer(link, part, progress):
                return
            reason = "the connection was cut"
        except urllib.error.HTTPError as error:
            with error:
                reason = f"{error.code} {error.reason}"
                if error.code == 416 and part.nbytes:  # the part is longer than the file has become
                    part.restart()
                elif error.code not in BUSY:
                    raise _refused(link, reason) from error
        except (OSError, http.client.HTTPException) as error:
            reason = unreachable_reason(link, error)
        failures = 0 if part.nbytes > before else failures + 1
        if failures >= ATTEMPTS:
            raise FetchFailed(
                f"`{link.host}` could not be reached: {reason}",
                hint="check the network and the proxy settings, then pull again; what has arrived is kept",
                code=UNREACHABLE,
            )
        pause(0.25 * 2**failures)


def _one_answer(link: Link, part: _Part, progress: Callable[[int], None]) -> bool:
    """Read one answer to its end; whether the file is complete now."""
    asked_from = 0 if link.url.startswith("file:") else part.nbytes
    with open_url(link, {"Range": f"bytes={asked_from}-"} if asked_from else {}) as answer:
        starts_at = _range_start(answer.headers.get("Content-Range")) if answer.status == 206 else 0
        if starts_at != part.nbytes:
            part.restart()
        length = answer.headers.get("Content-Length")
        total = part.nbytes + int(length) if length else None
        if None not in (total, link.nbytes) and total != link.nbytes:
            raise FetchFailed(f"`{link.host}` offers `{link.file_name}` with {total} bytes instead of {link.nbytes}")
        while block := answer.read1(CHUNK_BYTES):  # what is there, so that a slow line shows progress too
            part.append(block)
            progress(part.nbytes)
    return total is None or part.nbytes >= total


def _range_start(content_range: str | None) -> int:
    """The first byte of `bytes 100-199/200` (RFC 9110 14.4); -1 where it cannot be read."""
    first = (content_range or "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdecimal() else -1


def _refused(link: Link, reason: str) -> FetchFailed:
    return FetchFailed(f"`{link.host}` refused `{link.file_name}`: {reason}", hint=link.refused_hint, code=REFUSED)
