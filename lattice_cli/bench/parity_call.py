"""One request of a parity case on a socket of its own: sent as written, answered as it comes, left at any moment.

Knows HTTP; knows nothing of what should come back. Every wait has a limit.

Thread: any (each call blocks its thread)
"""

from __future__ import annotations

import http.client
import select
import time
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import UNSET

from lattice_cli.address import Address
from lattice_cli.bench.parity_body import json_bytes, raw_bytes
from lattice_cli.bench.parity_case import Request

LIMIT_S = 20.0  # of one wait for bytes, and of one whole answer


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; header names are in lower case, `cut` says why the body is not whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: str | None = None


class NoAnswer(Exception):
    """Nothing that is HTTP came, or not in time."""


class Call:
    """One request under way. `close` at the end, whatever happened."""

    def __init__(self, address: Address, request: Request, limit_s: float = LIMIT_S) -> None:
        """Connect and send. Raises: NoAnswer when nobody is there."""
        self._limit_s = limit_s
        self._until_s = time.monotonic() + limit_s
        self._connection = address.connect(limit_s)
        self._response: http.client.HTTPResponse | None = None
        self._heard = b""
        try:
            self._connection.connect()
            self._send(request, address.prefix + request.path)
        except (BrokenPipeError, ConnectionResetError):  # it may answer before it has read all
            pass
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            raise NoAnswer(f"it cannot be sent: {reason}") from error

    def _send(self, request: Request, path: str) -> None:
        body = None if request.body is UNSET else json_bytes(request.body)
        body = raw_bytes(request.raw) if isinstance(request.raw, tuple) else body
        self._connection.putrequest(request.method, path, skip_accept_encoding=True)
        for name, value in self._headers(request, body).items():
            self._connection.putheader(name, value)
        self._connection.endheaders()
        if body is None:
            return
        if request.chunk is None:
            self._connection.send(body)
            return
        for at in range(0, len(body), request.chunk):
            piece = body[at : at + request.chunk]
            self._connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        self._connection.send(b"0\r\n\r\n")

    @staticmethod
    def _headers(request: Request, body: bytes | None) -> dict[str, str]:
        known: dict[str, str | None] = {}
        if body is not None or request.declared is not None:
            known["content-type"] = "application/json"
            known["content-length"] = str(len(body or b"") if request.declared is None else request.declared)
        if request.chunk is not None:
            known |= {"content-length": None, "transfer-encoding": "chunked"}
        known |= {name.lower(): value for name, value in request.headers.items()}
        return {name: value for name, value in known.items() if value is not None}

    def quiet(self, seconds: float) -> bool:
        """Whether nothing comes for so long, on a call nothing was read from yet."""
        return not select.select([self._connection.sock], [], [], seconds)[0]

    def read_until(self, wanted: bytes) -> bool:
        """Read on until the body holds `wanted`; False when it ends without. Raises: NoAnswer."""
        while wanted not in self._heard:
            if not self._read():
                return False
        return True

    def answer(self) -> Answer:
        """Everything to the end. Raises: NoAnswer."""
        response, cut = self._begun(), None
        try:
            while self._read():
                pass
        except NoAnswer as error:
            cut = str(error)
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, self._heard, cut)

    def close(self) -> None:
        """Leave, at whatever point."""
        if self._response is not None:
            self._response.close()
        self._connection.close()

    def _begun(self) -> http.client.HTTPResponse:
        if self._response is None:
            try:
                self._response = self._connection.getresponse()
            except TimeoutError:
                raise NoAnswer(f"no answer in {self._limit_s:g} s") from None
            except (OSError, http.client.HTTPException) as error:
                raise NoAnswer(f"no answer: {error or type(error).__name__}") from error
        return self._response

    def _read(self) -> bool:
        """Take in what has come; False at the end."""
        response = self._begun()
        if time.monotonic() > self._until_s:
            raise NoAnswer(f"no end in {self._limit_s:g} s")
        try:
            data = response.read1(65_536)
        except TimeoutError:
            raise NoAnswer(f"nothing came for {self._limit_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"the body broke off: {error}") from error
        self._heard += data
        if not data and response.length:  # Content-Length said more
            raise NoAnswer(f"the body broke off, {response.length} bytes early")
        return bool(data)
