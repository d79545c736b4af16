"""Listening sockets, bound before anything is loaded: an address and port, or a path that only its owner may open.

Knows the operating system; knows no HTTP.

Thread: any
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import stat
from contextlib import suppress
from pathlib import Path

from lattice_cli.errors import LatticeError

log = logging.getLogger("lattice.serve")

BACKLOG = 1024
CONNECTIONS = 4096
SPARE_DESCRIPTORS = 128  # weights, logs, the interpreter
OWNER_ONLY = 0o177  # what a umask takes away


def listen_on(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. Raises: LatticeError in one sentence."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # NOTE: on Linux two sockets may bind one port; only one may listen.
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:  # a name that IDNA cannot spell is a UnicodeError
        raise LatticeError(
            f"cannot listen on {host} port {port}: {getattr(error, 'strerror', None) or error}",
            hint="choose another with `--port`, or `--port 0` for a free one",
        ) from error
    return listener


def listen_at(path: Path) -> UnixPlace:
    """A listening socket at `path`, with mode 0600. One that a dead server left behind is replaced.

    Raises: LatticeError where somebody listens, where something else lies, or where nothing can be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _clear(path)
        before = os.umask(OWNER_ONLY)  # so that there is no moment in which others could connect
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
        made = path.lstat()
    except OSError as error:
        listener.close()
        raise LatticeError(
            f"cannot listen at `{path}`: {error.strerror or error}",
            hint="choose another path with `--unix-socket`; systems allow about 100 bytes",
        ) from error
    except LatticeError:
        listener.close()
        raise
    return UnixPlace(listener, path, (made.st_dev, made.st_ino))


def _clear(path: Path) -> None:
    """Remove a socket that nobody listens to. Raises: LatticeError, OSError."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise LatticeError(f"cannot listen at `{path}`: there is a file that is no socket", param="--unix-socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except FileNotFoundError:
            return
    raise LatticeError(f"cannot listen at `{path}`: somebody listens there already", param="--unix-socket")


class UnixPlace:
    """A socket at a path, and the file it is found by."""

    def __init__(self, listener: socket.socket, path: Path, identity: tuple[int, int]) -> None:
        self.listener = listener
        self.path = path
        self._identity = identity

    def remove(self) -> None:
        """Take the file away, unless another has put his own there meanwhile. Never raises."""
        with suppress(OSError):
            found = self.path.lstat()
            if (found.st_dev, found.st_ino) == self._identity:
                self.path.unlink()


def connection_limit() -> int:
    """How many clients may be connected; raises the process's soft limit on descriptors towards that number.

    A connection takes one descriptor, and another while a large body is spooled to disk.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS + SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        except (OSError, ValueError):  # macOS refuses more than the kernel's own limit
            log.info("the limit of %d open files could not be raised", soft)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS
    return max(16, min(CONNECTIONS, (soft - SPARE_DESCRIPTORS) // 2))
