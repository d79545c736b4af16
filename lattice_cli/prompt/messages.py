"""Turns and tools -> what a template sees: plain dicts and lists, in the shape Hugging Face's templates expect.

A template's habits decide where the words of the system go: kept in place, gathered at the beginning, or put before
the first question.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lattice_cli.conversation import ToolCall, Turn
from lattice_cli.job import Tool
from lattice_cli.prompt.safe import Shield
from lattice_cli.prompt.traits import SystemPlace

Message = dict[str, Any]
# Where templates look for thoughts that were told apart; gpt-oss' reads the last one.
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


def messages_of(turns: Sequence[Turn], shield: Shield, source: str) -> list[Message]:
    """One message for each turn. Content is always a text: templates search it and add to it.

    Thoughts go under those keys that the template's `source` mentions.
    """
    return [_message(turn, shield, source) for turn in turns]


def _message(turn: Turn, shield: Shield, source: str) -> Message:
    assistant = turn.role == "assistant"
    message: Message = {"role": turn.role, "content": shield.answer(turn.text) if assistant else shield.text(turn.text)}
    if turn.name is not None:
        message["name"] = shield.name(turn.name)
    if turn.tool_call_id is not None:
        message["tool_call_id"] = shield.name(turn.tool_call_id)
    if turn.reasoning is not None:
        message |= {key: shield.text(turn.reasoning) for key in REASONING_KEYS if key in source}
    if turn.tool_calls:
        message["tool_calls"] = [_call(call, shield) for call in turn.tool_calls]
    return message


def _call(call: ToolCall, shield: Shield) -> Message:
    function = {"name": shield.name(call.name), "arguments": shield.value(arguments_of(call))}
    return {"id": shield.name(call.id), "type": "function", "function": function}


def arguments_of(call: ToolCall) -> Any:
    """The value of a call's arguments, as templates want it; what is no JSON stays a text (user report 45)."""
    if not call.arguments.strip():
        return {}
    try:
        return json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments


def tools_of(tools: Sequence[Tool], shield: Shield) -> list[Message]:
    """As `tools` of a template. A schema without properties gets an empty list of them (user report 51)."""
    return [{"type": "function", "function": _function(tool, shield)} for tool in tools]


def _function(tool: Tool, shield: Shield) -> Message:
    function: Message = {"name": shield.name(tool.name)}
    if tool.description:
        function["description"] = shield.text(tool.description)
    parameters = json.loads(tool.parameters)
    if not isinstance(parameters, dict):
        parameters = {}
    if parameters.get("type", "object") == "object" and "properties" not in parameters:
        parameters = {**parameters, "type": "object", "properties": {}}
    return {**function, "parameters": shield.value(parameters)}


def with_empty_descriptions(tools: Sequence[Message]) -> list[Message]:
    """For templates that add to a description without asking for one."""
    return [{**tool, "function": {"description": "", **tool["function"]}} for tool in tools]


def place_system(messages: list[Message], place: SystemPlace) -> list[Message]:
    """Words of the system where the template can say them (user report 114)."""
    said = [message["content"] for message in messages if message["role"] == "system"]
    late = any(message["role"] == "system" for message in messages[1:])
    if not said or place is SystemPlace.ANYWHERE or (place is SystemPlace.FIRST and not late):
        return messages
    text = "\n\n".join(part for part in said if part)
    others = [message for message in messages if message["role"] != "system"]
    if place is SystemPlace.FIRST:
        return [{"role": "system", "content": text}, *others]
    first = next((at for at, message in enumerate(others) if message["role"] == "user"), None)
    if first is None or not text:
        return others if first is not None else messages
    asked = {**others[first], "content": f"{text}\n\n{others[first]['content']}"}
    return [*others[:first], asked, *others[first + 1 :]]
