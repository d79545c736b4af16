"""What the clients of a soak ask for: short and long, told at once or as it comes, bound by schemas, with tools, and
given up half-way. Standard library only.

Thread: any (one thread a client)
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import time
from collections.abc import Callable
from typing import Any

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LIMIT_S = 300.0  # a long prompt behind others on a slow machine
PROSE = "the river ran past a small town where people sold bread and told each other stories about the sea"
WORDS = PROSE.split()
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]},
    },
}


class Client:
    """One of them: asks again and again, something else each time, decided by its seed."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self._history: list[dict[str, str]] = []

    def prose(self, words: int) -> str:
        return " ".join(self._random.choice(WORDS) for _ in range(words))

    def ask(self) -> tuple[str, str]:
        """(kind of request, how it went): a status, or `left` for one that was given up on purpose."""
        name, make = self._random.choice(KINDS)
        try:
            return name, make(self)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            return name, f"{type(error).__name__}: {error}"

    # Requests.

    def short(self) -> str:
        return self._whole(CHAT, self._chat(self.prose(8), max_tokens=32))

    def streamed(self) -> str:
        return self._stream(self._chat(self.prose(8), max_tokens=48, stream=True), None)

    def cancelled(self) -> str:
        return self._stream(self._chat(self.prose(20), max_tokens=400, stream=True), self._random.randrange(1, 30))

    def abandoned(self) -> str:
        """A plain reply, whose client goes before it comes."""
        connection = self._send(CHAT, self._chat(self.prose(20), max_tokens=400))
        time.sleep(self._random.random())
        connection.close()
        return "left"

    def long(self) -> str:
        words = self._random.choice((300, 800, 1500))
        return self._whole(CHAT, self._chat(self.prose(words), max_tokens=8))

    def tools(self) -> str:
        said = self._chat("weather in Oslo?", max_tokens=64, tools=[TOOL], tool_choice="required")
        return self._whole(CHAT, said, lambda reply: json.loads(_call(reply)))

    def schema(self) -> str:
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
        said = self._chat(f"Describe {self.prose(3)}.", max_tokens=64, response_format=form)
        return self._whole(CHAT, said, lambda reply: _person(reply))

    def choices(self) -> str:
        return self._whole(CHAT, self._chat(self.prose(8), max_tokens=16, n=3, seed=self._random.randrange(99)))

    def scored(self) -> str:
        return self._whole(TEXT, {"prompt": self.prose(40), "max_tokens": 4, "echo": True, "logprobs": 2})

    def conversation(self) -> str:
        """Grows, is edited now and then, and begins anew."""
        if len(self._history) > 12:
            self._history.clear()
        if len(self._history) > 2 and self._random.random() < 0.3:
            del self._history[-2:]
        self._history.append({"role": "user", "content": self.prose(15)})
        told: list[str] = []

        def keep(reply: Any) -> None:
            told.append(reply["choices"][0]["message"]["content"] or "")

        went = self._whole(CHAT, {"messages": list(self._history), "max_tokens": 24, "temperature": 0}, keep)
        if told:
            self._history.append({"role": "assistant", "content": told[0]})
        else:
            self._history.pop()
        return went

    def refused(self) -> str:
        return self._whole(CHAT, self._chat("x", temperature=9))

    # How they are sent.

    def _chat(self, content: str, **fields: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": content}], **fields}

    def _send(self, path: str, said: dict[str, Any]) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT_S)
        connection.request("POST", path, json.dumps(said), {"Content-Type": "application/json"})
        return connection

    def _whole(self, path: str, said: dict[str, Any], check: Callable[[Any], object] = lambda reply: None) -> str:
        connection = self._send(path, said)
        try:
            answer = connection.getresponse()
            reply = json.loads(answer.read())
            if answer.status == 200:
                check(reply)
            return str(answer.status)
        finally:
            connection.close()

    def _stream(self, said: dict[str, Any], chunks: int | None) -> str:
        """All of it, or so many chunks."""
        connection = self._send(CHAT, said)
        try:
            answer = connection.getresponse()
            if answer.status != 200:
                return str(answer.status)
            last, count = b"", 0
            while line := answer.readline():
                last, count = (line, count + 1) if line.strip() else (last, count)
                if chunks is not None and count >= chunks:
                    if connection.sock is not None:
                        connection.sock.shutdown(socket.SHUT_RDWR)
                    answer.close()
                    return "left"
            return "200" if last.strip() == b"data: [DONE]" else f"a stream ended with {last[:80]!r}"
        finally:
            connection.close()


def _call(reply: Any) -> str:
    arguments: str = reply["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    return arguments


def _person(reply: Any) -> None:
    choice = reply["choices"][0]
    if choice["finish_reason"] == "stop":  # else it was cut by max_tokens
        assert sorted(json.loads(choice["message"]["content"])) == ["age", "name"], choice


KINDS: list[tuple[str, Callable[[Client], str]]] = [
    ("short", Client.short),
    ("streamed", Client.streamed),
    ("cancelled", Client.cancelled),
    ("abandoned", Client.abandoned),
    ("long", Client.long),
    ("tools", Client.tools),
    ("schema", Client.schema),
    ("choices", Client.choices),
    ("scored", Client.scored),
    ("conversation", Client.conversation),
    ("refused", Client.refused),
]
FINE = {"200", "429", "left"}


def is_fine(kind: str, went: str) -> bool:
    """Whether a request went as it should."""
    return went == "400" if kind == "refused" else went in FINE
