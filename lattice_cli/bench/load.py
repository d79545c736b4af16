"""One question to an OpenAI-compatible server, streamed, with the times a client sees.

Knows HTTP and server-sent events; knows nothing of who serves. A reply without text, usage or a proper
end is a Miss with its reason, never a success.

Thread: any (each call blocks its thread)
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
from sseclient import SSEClient

from lattice_cli.bench.address import Address, read_address
from lattice_cli.bench.reading import Answer, Frame, Miss, Reading


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and how to ask it; `timeout_s` bounds every wait for bytes."""

    address: Address
    timeout_s: float
    api_key: str | None = field(default=None, repr=False)

    def connect(self) -> http.client.HTTPConnection:
        """A fresh connection, not yet open."""
        return self.address.connect(self.timeout_s)

    def path(self, name: str) -> str:
        """Of `chat/completions` and the like."""
        return f"{self.address.path or '/v1'}/{name}"

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        known = {"content-type": "application/json", "accept": "text/event-stream"}
        return known | ({"authorization": f"Bearer {self.api_key}"} if self.api_key else {})


def read_target(url: str, timeout_s: float, api_key: str | None = None) -> Target:
    """`http://host:port`, with or without `/v1`. Raises: UsageError."""
    return Target(read_address(url), timeout_s, api_key)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `opening` is unlike any other question's, so that no cached prefix helps."""

    model: str
    opening: str
    text: str
    max_tokens: int

    def body(self) -> bytes:
        """The request: streamed, greedy, with usage."""
        wire = {
            "model": self.model,
            "messages": [{"role": "system", "content": self.opening}, {"role": "user", "content": self.text}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return msgspec.json.encode(wire)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def ask(target: Target, question: Question, clock: Callable[[], float] = time.monotonic) -> Answer | Miss:
    """Ask once, on a connection of its own. Whatever goes wrong is a Miss; only bugs raise."""
    began_s = clock()
    connection = target.connect()
    try:
        connection.request("POST", target.path("chat/completions"), question.body(), target.headers())
        response = connection.getresponse()
        if response.status != 200:
            return Miss(f"HTTP {response.status}: {_told(response.read())}")
        reading = Reading()
        for event in SSEClient(_arrivals(response)).events():
            if event.data == "[DONE]":
                break
            frame = msgspec.json.decode(event.data, type=Frame)
            if frame.error is not None:
                return Miss(f"an error in the stream: {_told(msgspec.json.encode(frame.error))}")
            reading.take(frame, clock() - began_s)
        return reading.outcome(clock() - began_s)
    except TimeoutError:
        return Miss(f"nothing came for {target.timeout_s:g} s")
    except OSError as error:
        return Miss(f"the connection failed: {error.strerror or error}")
    except http.client.HTTPException as error:
        return Miss(f"the connection broke: {type(error).__name__}")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Miss(f"the stream is not OpenAI's: {error}")
    finally:
        connection.close()


def first_model(target: Target) -> str | None:
    """The first id of `/v1/models`; None when the server does not tell."""
    connection = target.connect()
    try:
        connection.request("GET", target.path("models"), headers=target.headers())
        models = msgspec.json.decode(connection.getresponse().read(), type=_Models)
        return models.data[0].id if models.data else None
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()


def _arrivals(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body as it arrives, unlike plain iteration, which waits for whole lines of a buffer."""
    while data := response.read1(65_536):
        yield data


def _told(body: bytes) -> str:
    """The message of an error body in any of the usual shapes, else its beginning."""
    try:
        error = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body[:200].decode("utf-8", "replace").strip() or "no body"
    while isinstance(error, dict):
        error = error.get("error", error.get("message", error.get("detail", str(error))))
    return str(error)
