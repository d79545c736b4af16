"""One question to an OpenAI-compatible server, streamed, with the times a client sees.

Knows HTTP and server-sent events; knows nothing of who serves. A reply without text, usage or a proper
end is a Miss with its reason, never a success.

Thread: any (each call blocks its thread)
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
from sseclient import SSEClient

from lattice_cli.address import Address, read_address
from lattice_cli.bench.reading import Answer, CountTokens, Frame, Miss, Reading

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and how to ask it; `timeout_s` bounds every wait for bytes. `count` counts tokens of a text."""

    address: Address
    timeout_s: float
    api_key: str | None = field(default=None, repr=False)
    count: CountTokens | None = None

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


def read_target(url: str, timeout_s: float, api_key: str | None = None, count: CountTokens | None = None) -> Target:
    """`http://host:port`, with or without `/v1`. Raises: UsageError."""
    return Target(read_address(url), timeout_s, api_key, count)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: (role, text) pairs. `more` are fields beyond the usual ones, such as `ignore_eos`."""

    model: str
    messages: tuple[tuple[str, str], ...]
    max_tokens: int
    more: tuple[tuple[str, object], ...] = ()

    def body(self) -> bytes:
        """The request: streamed, greedy, with usage."""
        wire = {
            "model": self.model,
            "messages": [{"role": role, "content": text} for role, text in self.messages],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **dict(self.more),
        }
        return msgspec.json.encode(wire)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def ask(
    target: Target, question: Question, clock: Clock = time.monotonic, heard: Callable[[], bool] = lambda: True
) -> Answer | Miss:
    """Ask once, on a connection of its own. Whatever goes wrong is a Miss; only bugs raise.

    `heard` is called at every text; when it says False the client leaves, and that is a Miss of kind "left".
    """
    return _ask(target, question, Reading(question.max_tokens, target.count), clock, heard)


def ask_whole(target: Target, question: Question) -> tuple[str, Answer] | Miss:
    """The same, with the text that came; thoughts are at its beginning."""
    reading = Reading(question.max_tokens, target.count)
    outcome = _ask(target, question, reading, time.monotonic, lambda: True)
    return outcome if isinstance(outcome, Miss) else ("".join(reading.texts), outcome)


def _ask(
    target: Target, question: Question, reading: Reading, clock: Clock, heard: Callable[[], bool]
) -> Answer | Miss:
    began_s = clock()
    connection = target.connect()
    try:
        connection.request("POST", target.path("chat/completions"), question.body(), target.headers())
        response = connection.getresponse()
        if response.status != 200:
            return Miss(f"HTTP {response.status}: {_told(response.read())}", f"HTTP {response.status}")
        return read_stream(_arrivals(response), reading, lambda: clock() - began_s, heard)
    except TimeoutError:
        return Miss(f"nothing came for {target.timeout_s:g} s", "timeout")
    except OSError as error:
        return Miss(f"the connection failed: {error.strerror or error}", "connection")
    except http.client.HTTPException as error:
        return Miss(f"the connection broke: {type(error).__name__}", "connection")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Miss(f"the stream is not OpenAI's: {error}", "malformed")
    finally:
        connection.close()


def read_stream(
    packets: Iterable[bytes], reading: Reading, clock: Clock, heard: Callable[[], bool] = lambda: True
) -> Answer | Miss:
    """Fold the packets of a stream's body. The clock is read once a packet, when it came, however it is cut."""
    came_s = 0.0

    def timed() -> Iterator[bytes]:
        nonlocal came_s
        for packet in packets:
            came_s = clock()
            yield packet

    for event in SSEClient(timed()).events():
        if event.data == "[DONE]":
            break
        frame = msgspec.json.decode(event.data, type=Frame)
        if frame.error is not None:
            told = _told(msgspec.json.encode(frame.error))
            return Miss(f"an error in the stream: {told}", "error in the stream")
        texts = len(reading.texts)
        reading.take(frame, came_s)
        if len(reading.texts) > texts and not heard():
            return Miss("this client left", "left")
    return reading.outcome(clock())


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
