"""Tools for templates that do not render them: a block of instructions in the words of Hermes, and calls as text.

Source: NousResearch's Hermes function calling (`<tools>`, `<tool_call>`, `<tool_response>`), which Qwen2.5 uses, too.
It works on what a template sees, after texts from outside were made safe, so the markers here are real ones.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>"
)


def tool_block(tools: Sequence[Message]) -> str:
    """The instructions that offer `tools`."""
    return _BEFORE + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools) + _AFTER


def with_tools_as_text(messages: Sequence[Message], tools: Sequence[Message]) -> list[Message]:
    """The same conversation in three roles: tools in the system's words, calls and results as text."""
    said: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            _add_result(said, f"<tool_response>\n{message['content']}\n</tool_response>")
        elif "tool_calls" in message:
            calls = "\n".join(map(_call, message["tool_calls"]))
            text = f"{message['content']}\n{calls}" if message["content"] else calls
            kept = {key: value for key, value in message.items() if key != "tool_calls"}
            said.append({**kept, "content": text})
        else:
            said.append(message)
    if not tools:
        return said
    first = said[0] if said and said[0]["role"] == "system" else None
    system = f"{first['content']}\n\n{tool_block(tools)}" if first and first["content"] else tool_block(tools)
    return [{"role": "system", "content": system}, *(said[1:] if first else said)]


def _call(call: Message) -> str:
    function = call["function"]
    arguments = function["arguments"]
    told = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {told}}}\n</tool_call>'


def _add_result(said: list[Message], text: str) -> None:
    """Results one after another are one message of the user's: many templates want roles to alternate."""
    if said and said[-1]["role"] == "user" and said[-1]["content"].endswith("</tool_response>"):
        said[-1] = {"role": "user", "content": f"{said[-1]['content']}\n{text}"}
    else:
        said.append({"role": "user", "content": text})
