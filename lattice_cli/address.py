"""Where a server is, read from what a person typed.

Thread: any
"""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from urllib.parse import urlsplit

from lattice_cli.errors import UsageError


@dataclass(frozen=True, slots=True)
class Address:
    """`path` is what was typed behind the port, without a slash at its end: nothing, `/v1`, or a path of its own."""

    host: str
    port: int
    secure: bool = False
    path: str = ""

    @property
    def prefix(self) -> str:
        """What stands before `/v1/...`, for those who name the version themselves."""
        return self.path.removesuffix("/v1")

    def connect(self, limit_s: float) -> http.client.HTTPConnection:
        """A connection, not yet open; `limit_s` bounds every wait for bytes."""
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=limit_s)


def read_address(url: str) -> Address:
    """`http://host:port`, with or without `/v1`. Raises: UsageError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"`{url}` is no http address", param="--url", hint="such as http://127.0.0.1:11435")
    secure = parts.scheme == "https"
    return Address(parts.hostname, port or (443 if secure else 80), secure, parts.path.rstrip("/"))
