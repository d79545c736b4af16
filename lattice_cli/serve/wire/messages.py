"""The messages of a chat -> turns.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lattice_cli.conversation import Role, TextPart, Turn
from lattice_cli.errors import InvalidField, InvalidMessages, UnsupportedField

ROLES: Mapping[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
LATER_ROLES = ("tool", "function")
MOST_PARTS = 1024


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


KNOWN_IN_MESSAGE = frozenset({
    *Message.__struct_fields__, "name", "refusal", "annotations", "reasoning_content", "reasoning", "tool_call_id",
})  # fmt: skip


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
