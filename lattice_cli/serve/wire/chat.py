"""/v1/chat/completions: OpenAI's chat request and answer.

Knows spelling; knows no events' order, no framework and no engine. Every byte it writes is ASCII: U+2028 and
its like cut a stream in two for clients that split lines as Unicode does (user report 8).

Thread: any
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from lattice_cli.conversation import Role, TextPart, Turn
from lattice_cli.errors import InvalidField, InvalidMessages, LatticeError, UnsupportedField
from lattice_cli.events import Finished, Piece
from lattice_cli.job import Channel
from lattice_cli.serve.failures import envelope
from lattice_cli.serve.wire import Ask, Frame
from lattice_cli.serve.wire.body import read_object
from lattice_cli.serve.wire.fields import refuse_unsupported, unknown_names
from lattice_cli.serve.wire.schema import SharedFields, max_tokens_of, read_fields, sampling_of, stops_of

if TYPE_CHECKING:
    from lattice_cli.engine.completion import Completion

ROLES: Mapping[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
SERVED_NAMES = ("", "default", "lattice")  # the last one is in lattice_serve's own examples
LATER_ROLES = ("tool", "function")
MOST_PARTS = 1024
DONE = Frame(b"[DONE]")
DELTA_KEYS = {Channel.ANSWER: b"content", Channel.REASONING: b"reasoning_content"}


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class Message(msgspec.Struct):
    """`name`, `refusal`, `reasoning_content` and the like, which clients send back, are read past."""

    role: str
    content: str | list[ContentPart] | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None
    audio: Any = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatFields(SharedFields):
    messages: list[Message] | None = None
    stream_options: StreamOptions | None = None


KNOWN = frozenset(ChatFields.__struct_fields__)
KNOWN_IN_MESSAGE = frozenset({
    *Message.__struct_fields__, "name", "refusal", "annotations", "reasoning_content", "reasoning", "tool_call_id",
})  # fmt: skip


class ChatDialect:
    """See `Dialect`."""

    def parse(self, body: bytes) -> Ask:
        said = read_object(body)
        refuse_unsupported(said)
        _refuse_many_parts(said)
        fields = read_fields(said, ChatFields)
        if fields.stream_options is not None and not fields.stream:
            raise InvalidField("`stream_options` needs `stream` to be true", param="stream_options")
        return Ask(
            turns=_turns(fields.messages),
            model=None if fields.model in SERVED_NAMES else fields.model,
            sampling=sampling_of(fields),
            max_tokens=max_tokens_of(fields),
            reasoning_budget=fields.reasoning_budget,
            stop=stops_of(fields),
            choices=fields.n or 1,
            stream=bool(fields.stream),
            include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
            ignored=_ignored(said),
        )

    def voice(self, ask: Ask, model: str) -> ChatVoice:
        return ChatVoice(f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), model, include_usage=ask.include_usage)


def _refuse_many_parts(said: Mapping[str, Any]) -> None:
    """Before anything is made of them. What is no message at all is told by the reading proper."""
    messages = said.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and len(content) > MOST_PARTS:
            place = f"messages[{index}].content"
            raise InvalidField(
                f"`{place}` has more than {MOST_PARTS} parts", param=place, code="content_part_limit_exceeded"
            )


def _turns(messages: Sequence[Message] | None) -> tuple[Turn, ...]:
    if not messages:
        raise InvalidMessages("`messages` must hold at least one message", param="messages")
    return tuple(_turn(message, f"messages[{index}]") for index, message in enumerate(messages))


def _turn(message: Message, place: str) -> Turn:
    if message.role in LATER_ROLES:
        raise UnsupportedField(f"the role `{message.role}` is not supported yet", param=f"{place}.role")
    if message.role not in ROLES:
        raise InvalidMessages(
            f"`{place}.role` is none of system, developer, user, assistant", param=f"{place}.role", code="invalid_role"
        )
    for name in ("tool_calls", "function_call", "audio"):
        if getattr(message, name):
            raise UnsupportedField(f"`{place}.{name}` is not supported yet", param=f"{place}.{name}")
    role = ROLES[message.role]
    if message.content is None and role != "assistant":
        raise InvalidMessages(
            f"`{place}.content` must be a string or an array of parts",
            param=f"{place}.content",
        )
    if isinstance(message.content, list):
        return Turn(role, tuple(_part(part, f"{place}.content[{at}]") for at, part in enumerate(message.content)))
    return Turn(role, (TextPart(message.content),) if message.content else ())


def _part(part: ContentPart, place: str) -> TextPart:
    if part.type != "text":
        kind = json.dumps(part.type[:64])
        raise UnsupportedField(f"`{place}` is a part of type {kind}; only text is supported", param=f"{place}.type")
    if part.text is None:
        raise InvalidField(f"`{place}.text` is missing", param=f"{place}.text")
    return TextPart(part.text)


def _ignored(said: Mapping[str, Any]) -> tuple[str, ...]:
    inside = [f"messages.{name}" for message in said["messages"] for name in message if name not in KNOWN_IN_MESSAGE]
    options = [name for name in said.get("stream_options") or {} if name not in StreamOptions.__struct_fields__]
    return unknown_names([*said, *inside, *(f"stream_options.{name}" for name in options)], KNOWN)


class ChatVoice:
    """See `Voice`. One id, one time and one model name for all it says."""

    def __init__(self, answer_id: str, created_s: int, model: str, *, include_usage: bool = False) -> None:
        self._head = {"id": answer_id, "created": created_s, "model": model}
        self._include_usage = include_usage
        # PERF: a chunk is made by joining bytes; only its text is encoded anew (1 us, against 6 for the whole dict).
        self._before = _compact({**self._head, "object": "chat.completion.chunk"})[:-1]

    def begin(self) -> list[Frame]:
        return []

    def open(self, choice: int) -> list[Frame]:
        return [self._delta(choice, b'{"role":"assistant"}')]

    def chunk(self, choice: int, piece: Piece) -> list[Frame]:
        return [self._delta(choice, b'{"%b":%b}' % (DELTA_KEYS[piece.channel], _compact(piece.text)))]

    def close(self, choice: int, finished: Finished) -> list[Frame]:
        return [self._delta(choice, b"{}", _compact(finished.reason))]

    def end(self, finished: Sequence[Finished]) -> list[Frame]:
        if not self._include_usage:
            return [DONE]
        usage = _compact({"choices": [], "usage": _usage(finished)})
        return [Frame(self._before + b"," + usage[1:]), DONE]

    def fault(self, error: LatticeError) -> list[Frame]:
        return [Frame(_compact(envelope(error))), DONE]

    def whole(self, completions: Sequence[Completion]) -> bytes:
        ends = [one.finished for one in completions if one.finished is not None]
        choices = [_choice(index, one) for index, one in enumerate(completions)]
        answer = {**self._head, "object": "chat.completion", "choices": choices, "usage": _usage(ends)}
        return _compact(answer)

    def _delta(self, choice: int, delta: bytes, reason: bytes = b"null") -> Frame:
        return Frame(
            b'%b,"choices":[{"index":%d,"delta":%b,"finish_reason":%b}]}' % (self._before, choice, delta, reason)
        )


def _compact(value: Any) -> bytes:
    """JSON in ASCII, without spaces. One object is encoded in one go, so no line ends inside."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _choice(index: int, completion: Completion) -> dict[str, Any]:
    message = {"role": "assistant", "content": completion.answer}
    if completion.reasoning:
        message["reasoning_content"] = completion.reasoning
    reason = completion.finished.reason if completion.finished else None
    return {"index": index, "message": message, "finish_reason": reason}


def _usage(finished: Sequence[Finished]) -> dict[str, Any]:
    """Counts over all replies; the prompt they share counts once."""
    prompt = max((one.usage.prompt_tokens for one in finished), default=0)
    completion = sum(one.usage.completion_tokens for one in finished)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": max((one.usage.cached_tokens for one in finished), default=0)},
        "completion_tokens_details": {"reasoning_tokens": sum(one.usage.reasoning_tokens for one in finished)},
    }
