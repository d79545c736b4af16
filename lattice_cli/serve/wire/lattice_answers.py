"""The answers of both lattice_serve versions: one choice, names of JSON in order, no usage in streams, and an end that
looks like a success whatever happened.

Knows spelling; knows no events' order. Every byte it writes is ASCII, which is the same JSON.

Thread: any
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lattice_cli.errors import EngineFault, EngineLost, LatticeError, Overloaded
from lattice_cli.events import CallPart, Finished, FinishReason, Piece
from lattice_cli.serve.wire import Frame, Page
from lattice_cli.serve.wire.openai import model_entry

if TYPE_CHECKING:
    from lattice_cli.engine.completion import Completion

JSON = "application/json"
DONE = Frame(b"[DONE]")


class LatticeVoice:
    """See `Voice`. `finish` says a reply's end in the words of the wire."""

    def __init__(self, model: str, finish: Callable[[FinishReason], str], now_ns: int | None = None) -> None:
        born_ns = time.time_ns() if now_ns is None else now_ns
        self._finish = finish
        self._head = {"created": born_ns // 1_000_000_000, "id": f"chatcmpl-{born_ns}", "model": model}
        # PERF: a chunk is made by joining bytes; only its text is encoded anew.
        self._after = compact({**self._head, "object": "chat.completion.chunk"})[1:]

    def begin(self) -> list[Frame]:
        return [self._delta(b'{"role":"assistant"}')]

    def open(self, choice: int) -> list[Frame]:
        return []

    def chunk(self, choice: int, piece: Piece) -> list[Frame]:
        return [self._delta(b'{"content":%b}' % compact(piece.text))]

    def call(self, choice: int, part: CallPart) -> list[Frame]:
        """Neither version knows calls, so none is ever asked for."""
        return []

    def close(self, choice: int, finished: Finished) -> list[Frame]:
        return [self._delta(b"{}", compact(self._finish(finished.reason)))]

    def end(self, finished: Sequence[Finished]) -> list[Frame]:
        return [DONE]

    def fault(self, error: LatticeError) -> list[Frame]:
        """A made-up success, as both versions have it (lattice issue 933)."""
        return [self._delta(b"{}", b'"stop"'), DONE]

    def whole(self, completions: Sequence[Completion]) -> bytes:
        (one,) = completions
        assert one.finished is not None
        usage = one.finished.usage
        choice = {
            "finish_reason": self._finish(one.finished.reason),
            "index": 0,
            "message": {"content": one.answer, "role": "assistant"},
        }
        counts = {
            "completion_tokens": usage.completion_tokens,
            "prompt_tokens": usage.prompt_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        return compact({"choices": [choice], **self._head, "object": "chat.completion", "usage": counts})

    def _delta(self, delta: bytes, reason: bytes = b"null") -> Frame:
        return Frame(b'{"choices":[{"delta":%b,"finish_reason":%b,"index":0}],%b' % (delta, reason, self._after))


def compact(value: Any) -> bytes:
    """JSON in ASCII, without spaces and without an end of line."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def in_order(value: Mapping[str, Any], status: int = 200) -> Page:
    """A page of JSON, its names in order."""
    return Page(status, JSON, json.dumps(value, separators=(",", ":"), sort_keys=True).encode("ascii"))


class LatticePages:
    """The pages that both versions have: see `Wire`."""

    def health(self, state: str, *, ready: bool) -> Page:
        """`ok` from the first moment lattice_serve would listen, whatever became of its engine since."""
        if state == "loading":
            return in_order({"status": state}, 503)
        return Page(200, "text/plain; charset=utf-8", b"ok")

    def root(self, endpoints: Sequence[str]) -> Page:
        return in_order({"name": "lattice", "object": "engine", "endpoints": list(endpoints)})

    def models(self, names: Sequence[str], started_s: int) -> Page:
        return in_order({"object": "list", "data": [model_entry(names[0], int(time.time()))]})


class Told(NamedTuple):
    """What both versions say of a failure, each in its own envelope."""

    status: int
    kind: str
    code: str
    message: str


def told(error: LatticeError) -> Told:
    """Failures that they know in their words, the others in ours. 503 for a full queue came with 0.7."""
    match error:
        case EngineLost():
            return Told(500, "server_error", "internal_error", "inference worker unavailable")
        case EngineFault():
            return Told(500, "server_error", "internal_error", "inference failed")
        case Overloaded():
            return Told(503, "server_error", error.code, error.sentence())
        case _:
            return Told(error.status, error.kind, error.code, error.sentence())
