"""The messages of a chat -> turns.

`null` means absent in them too: clients send back what SDKs made of our own answers (report 49).

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lattice_cli.conversation import Role, TextPart, ToolCall, Turn
from lattice_cli.errors import InvalidField, InvalidMessages, UnsupportedField

ROLES: Mapping[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
}  # fmt: skip
MOST_PARTS = 1024


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: Any = None


class Called(msgspec.Struct):
    """`type` is "function" or absent; an `index`, as streams have it, is read past."""

    function: CalledFunction | None = None
    id: str | None = None
    type: str | None = None


class Message(msgspec.Struct):
    """Of thoughts that are sent back under both of their names, the first is read."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[Called] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    function_call: Any = None
    audio: Any = None


def refuse_many_parts(said: Mapping[str, Any]) -> None:
    """Before anything is made of them. What is no message at all is told by the reading proper."""
    messages = said.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and len(content) > MOST_PARTS:
            place = f"messages[{index}].content"
            raise InvalidField(
                f"`{place}` has more than {MOST_PARTS} parts", param=place, code="content_part_limit_exceeded"
            )


def turns_of(messages: Sequence[Message] | None) -> tuple[Turn, ...]:
    """Raises: InvalidMessages, InvalidField, UnsupportedField."""
    if not messages:
        raise InvalidMessages("`messages` must hold at least one message", param="messages")
    return tuple(_turn(message, f"messages[{index}]") for index, message in enumerate(messages))


def _turn(message: Message, place: str) -> Turn:
    if message.role == "function":
        raise UnsupportedField(
            "the role `function` is not supported", param=f"{place}.role", hint="send `tool` with a `tool_call_id`"
        )
    if message.role not in ROLES:
        raise InvalidMessages(
            f"`{place}.role` is none of {', '.join(ROLES)}", param=f"{place}.role", code="invalid_role"
        )
    for name in ("function_call", "audio"):
        if getattr(message, name):
            raise UnsupportedField(f"`{place}.{name}` is not supported", param=f"{place}.{name}")
    role = ROLES[message.role]
    if message.content is None and role != "assistant":
        raise InvalidMessages(
            f"`{place}.content` must be a string or an array of parts",
            param=f"{place}.content",
        )
    if message.tool_calls and role != "assistant":
        raise InvalidMessages(f"`{place}` has calls, which only an assistant makes", param=f"{place}.tool_calls")
    return Turn(
        role,
        _parts(message.content, f"{place}.content"),
        name=message.name or None,
        tool_calls=tuple(_call(one, f"{place}.tool_calls[{at}]") for at, one in enumerate(message.tool_calls or ())),
        tool_call_id=message.tool_call_id if role == "tool" else None,
        reasoning=_reasoning(message) if role == "assistant" else None,
    )


def _reasoning(message: Message) -> str | None:
    told = message.reasoning_content or message.reasoning
    return told if isinstance(told, str) and told else None


def _parts(content: str | list[ContentPart] | None, place: str) -> tuple[TextPart, ...]:
    if isinstance(content, list):
        return tuple(_part(part, f"{place}[{at}]") for at, part in enumerate(content))
    return (TextPart(content),) if content else ()


def _part(part: ContentPart, place: str) -> TextPart:
    if part.type not in ("text", "refusal"):
        kind = json.dumps(part.type[:64])
        raise UnsupportedField(f"`{place}` is a part of type {kind}; only text is supported", param=f"{place}.type")
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise InvalidField(f"`{place}.{part.type}` is missing", param=f"{place}.{part.type}")
    return TextPart(text)


def _call(said: Called, place: str) -> ToolCall:
    """Arguments are a JSON text, or the value itself (report 47)."""
    if said.type not in (None, "function"):
        raise UnsupportedField(f"`{place}.type` must be `function`", param=f"{place}.type")
    if said.function is None:
        raise InvalidField(f"`{place}.function` is missing", param=f"{place}.function")
    arguments = said.function.arguments
    if not isinstance(arguments, str):
        arguments = "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(said.id or "", said.function.name, arguments)
