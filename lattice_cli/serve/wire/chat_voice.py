"""How a chat's answer is spelled: OpenAI's chat.completion and its chunks.

Knows spelling; knows no events' order, no framework and no engine. Every byte it writes is ASCII: U+2028 and
its like cut a stream in two for clients that split lines as Unicode does (user report 8).

Thread: any
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lattice_cli.errors import LatticeError
from lattice_cli.events import CallPart, Finished, Piece
from lattice_cli.job import Channel
from lattice_cli.serve.failures import envelope
from lattice_cli.serve.wire import Frame
from lattice_cli.serve.wire.scores import chat_logprobs
from lattice_cli.serve.wire.usage import timings_of, usage_of

if TYPE_CHECKING:
    from lattice_cli.engine.completion import Completion

DONE = Frame(b"[DONE]")


def compact(value: Any) -> bytes:
    """JSON in ASCII, without spaces. One object is encoded in one go, so no line ends inside."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def last_frames(before: bytes, usage: dict[str, Any] | None) -> list[Frame]:
    """The end of a stream, after its usage where that is wanted; `before` is how each of its chunks begins."""
    if usage is None:
        return [DONE]
    return [Frame(before + b"," + compact({"choices": [], "usage": usage})[1:]), DONE]


def new_call_id() -> str:
    """Unique in the world: clients keep ids over turns (report 33)."""
    return f"call_{uuid.uuid4().hex[:24]}"


class ChatVoice:
    """See `Voice`. One id, one time and one model name for all it says; `choices` replies share the prompt."""

    def __init__(
        self,
        answer_id: str,
        created_s: int,
        model: str,
        *,
        include_usage: bool = False,
        logprobs: bool = False,
        choices: int = 1,
    ) -> None:
        self._head = {"id": answer_id, "created": created_s, "model": model}
        self._include_usage = include_usage
        self._logprobs = logprobs
        self._choices = choices
        # PERF: a chunk is made by joining bytes; only its text is encoded anew (1 us, against 6 for the whole dict).
        self._before = compact({**self._head, "object": "chat.completion.chunk"})[:-1]
        self._after = b',"usage":null}' if include_usage else b"}"

    def begin(self) -> list[Frame]:
        return []

    def open(self, choice: int) -> list[Frame]:
        return [self._delta(choice, b'{"role":"assistant"}')]

    def chunk(self, choice: int, piece: Piece) -> list[Frame]:
        if not piece.text and not (self._logprobs and piece.scores):
            return []
        text, logprobs = compact(piece.text), b""
        if piece.channel is Channel.REASONING:
            delta = b'{"reasoning_content":%b,"reasoning":%b}' % (text, text)
        else:
            delta = b'{"content":%b}' % text
        if self._logprobs:
            thought = piece.channel is Channel.REASONING
            told = chat_logprobs((), piece.scores) if thought else chat_logprobs(piece.scores)
            logprobs = b'"logprobs":%b,' % compact(told)
        return [self._delta(choice, delta, logprobs=logprobs)]

    def call(self, choice: int, part: CallPart) -> list[Frame]:
        told: dict[str, Any] = {"index": part.index, "function": {"arguments": part.arguments}}
        if part.name is not None:
            function = {"name": part.name, "arguments": part.arguments}
            told = {"index": part.index, "id": new_call_id(), "type": "function", "function": function}
        return [self._delta(choice, compact({"tool_calls": [told]}))]

    def close(self, choice: int, finished: Finished) -> list[Frame]:
        frame = self._delta(choice, b"{}", compact(finished.reason))
        timings = compact(timings_of([finished]))
        return [Frame(b'%b,"timings":%b}' % (frame.data[:-1], timings))]

    def end(self, finished: Sequence[Finished]) -> list[Frame]:
        return last_frames(self._before, usage_of(finished, self._choices) if self._include_usage else None)

    def fault(self, error: LatticeError) -> list[Frame]:
        return [Frame(compact(envelope(error))), DONE]

    def whole(self, completions: Sequence[Completion]) -> bytes:
        ends = [one.finished for one in completions if one.finished is not None]
        answer = {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(index, one) for index, one in enumerate(completions)],
            "usage": usage_of(ends, self._choices),
            "timings": timings_of(ends),
        }
        return compact(answer)

    def _delta(self, choice: int, delta: bytes, reason: bytes = b"null", logprobs: bytes = b"") -> Frame:
        return Frame(
            b'%b,"choices":[{"index":%d,"delta":%b,%b"finish_reason":%b}]%b'
            % (self._before, choice, delta, logprobs, reason, self._after)
        )

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        scores = None
        if self._logprobs:
            scores = chat_logprobs(completion.scores(Channel.ANSWER), completion.scores(Channel.REASONING))
        return {
            "index": index,
            "message": _message(completion),
            "logprobs": scores,
            "finish_reason": completion.finished.reason if completion.finished else None,
        }


def _message(completion: Completion) -> dict[str, Any]:
    """No content is an empty text, or null where there are calls instead. OpenAI's schema asks for a `refusal`, and
    for `logprobs` beside the message, even where they are null.
    """
    message: dict[str, Any] = {"role": "assistant", "content": completion.answer, "refusal": None}
    if completion.reasoning:
        message |= {"reasoning_content": completion.reasoning, "reasoning": completion.reasoning}
    if completion.calls:
        message["content"] = completion.answer or None
        message["tool_calls"] = [
            {
                "id": new_call_id(),
                "type": "function",
                "function": {"name": call.name, "arguments": "".join(call.arguments)},
            }
            for _, call in sorted(completion.calls.items())
        ]
    return message
