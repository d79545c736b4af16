"""Who may ask: names that a request must be addressed to (hosts.py), keys, and web pages of other origins, which CORS
forbids to read answers unless it is told otherwise.

Knows headers; knows no framework, no socket and no engine.

Thread: any
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from lattice_cli.errors import Forbidden, LatticeError, Unauthorized, UsageError
from lattice_cli.serve.hosts import ANY, ANY_HOST, Hosts

OPEN_PATHS = ("/health",)  # a probe has no key
METHODS = "GET, HEAD, POST, OPTIONS"
EXPOSED = "Retry-After, X-Ignored-Fields, X-Request-Id"
PREFLIGHT_S = 600
HIDDEN = "[key]"
KEY = re.compile(r"[!-~]+")
ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^\s/,?#]+")
HEADER_NAMES = re.compile(r"[A-Za-z0-9-]+( *, *[A-Za-z0-9-]+)*")
CHALLENGE = ("WWW-Authenticate", 'Bearer realm="lattice"')

Header = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Access:
    """`keys` are the secrets of which a request must bring one, none for no check; `origins` are those of web pages
    that may read answers. `digests` are made of the keys, so that comparing takes the same time for any of them.
    """

    hosts: Hosts = ANY_HOST
    keys: tuple[str, ...] = field(default=(), repr=False)
    origins: tuple[str, ...] = ()
    digests: tuple[bytes, ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "digests", tuple(_digest(key) for key in self.keys))

    def refusal(self, method: str, path: str, header: Header) -> LatticeError | None:
        """Why a request is not listened to; None when it is. Its body need not be read for this."""
        if not self.hosts.admit(header("Host")):
            return Forbidden(
                "the request is addressed to a host that this server is not",
                code="host_not_allowed",
                hint="start it with `--allow-host NAME`",
            )
        if not self.keys or path in OPEN_PATHS or self.is_preflight(method, header):
            return None
        offered = _offered(header)
        if offered is None:
            return Unauthorized("the request has no API key", hint="send `Authorization: Bearer KEY`")
        return None if self._knows(offered) else Unauthorized("the API key is not one of this server's")

    def _knows(self, offered: str) -> bool:
        """In a time that does not tell how much of it is right, nor of which key."""
        digest = _digest(offered)
        return bool(sum([hmac.compare_digest(digest, known) for known in self.digests]))

    def is_preflight(self, method: str, header: Header) -> bool:
        """A browser asks whether it may ask. It never sends a key with that."""
        return (
            method == "OPTIONS"
            and header("Access-Control-Request-Method") is not None
            and self._origin(header) is not None
        )

    def cross_origin(self, header: Header) -> Mapping[str, str]:
        """Headers for any answer to a page of another origin, refusals and streams too."""
        if not self.origins:
            return {}
        origin = self._origin(header)
        vary = {} if self.origins == (ANY,) else {"Vary": "Origin"}
        if origin is None:
            return vary
        told = {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": EXPOSED, **vary}
        return told if origin == ANY else {**told, "Access-Control-Allow-Credentials": "true"}

    def preflight(self, header: Header) -> Mapping[str, str]:
        """What a page that was let in may send: any header, because clients bring many of their own."""
        asked = header("Access-Control-Request-Headers") or ""
        names = asked if HEADER_NAMES.fullmatch(asked) else "Authorization, Content-Type"
        return {
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": names,
            "Access-Control-Max-Age": str(PREFLIGHT_S),
        }

    def _origin(self, header: Header) -> str | None:
        """What is said back to the origin that asks; None where that is nobody, or not let in."""
        origin = header("Origin")
        if origin is None:
            return None
        if origin.lower() in self.origins:
            return origin
        return ANY if ANY in self.origins else None

    def hidden(self, text: str) -> str:
        """The text as it may be logged."""
        for key in self.keys:
            text = text.replace(key, HIDDEN)
        return text


OPEN = Access()


def check_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Raises: UsageError for one that no header can carry; it is not said back."""
    if all(KEY.fullmatch(key) for key in keys):
        return keys
    raise UsageError(
        "an API key must be one or more printable ASCII characters without spaces",
        param="--api-key",
        hint="`openssl rand -hex 32` makes one",
    )


def check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    """In lower case. Raises: UsageError for one that no browser sends."""
    for origin in origins:
        if origin != ANY and not ORIGIN.fullmatch(origin.lower()):
            raise UsageError(
                f"`{origin}` is not an origin",
                param="--cors-origin",
                hint="an origin is `http://localhost:3000`, without a path, or `*` for all",
            )
    return tuple(origin.lower() for origin in origins)


def _offered(header: Header) -> str | None:
    scheme, _, key = (header("Authorization") or "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    return header("X-Api-Key")


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()
