"""The tools a chat offers, and how it wants them used.

Thread: any
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from lattice_cli.errors import InvalidField, UnsupportedField
from lattice_cli.job import Tool

MOST_TOOLS = 128
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class OfferedFunction(msgspec.Struct):
    """`strict` is what we do anyway: arguments are typed by the schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Offered(msgspec.Struct):
    type: str | None = None
    function: OfferedFunction | None = None


class ToolFields(msgspec.Struct):
    tools: list[Offered] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


@dataclass(frozen=True, slots=True)
class ToolAsk:
    """`tools` that a reply may call: as it likes, at least one of them, or the only one of that `name`. Without
    `parallel` it makes one call at the most.
    """

    tools: tuple[Tool, ...]
    choice: Literal["auto", "required", "named"] = "auto"
    name: str | None = None
    parallel: bool = True


def tools_of(fields: ToolFields) -> ToolAsk | None:
    """None where nothing can be called. Raises: InvalidField, UnsupportedField."""
    tools = _offered(fields.tools or [])
    parallel = fields.parallel_tool_calls is not False
    choice = fields.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        tools, choice = _allowed(tools, choice.get("allowed_tools"))
    if choice is None or choice == "auto":
        return ToolAsk(tools, parallel=parallel) if tools else None
    if choice == "none":
        return None
    if not tools:
        raise InvalidField("`tool_choice` asks for a call, and there are no `tools`", param="tool_choice")
    if choice == "required":
        return ToolAsk(tools, "required", parallel=parallel)
    if isinstance(choice, str):
        raise InvalidField(
            "`tool_choice` is none of none, auto, required and a function's name in an object", param="tool_choice"
        )
    return ToolAsk(tools, "named", name=_named(choice, tools, "tool_choice"), parallel=parallel)


def _offered(said: Sequence[Offered]) -> tuple[Tool, ...]:
    if len(said) > MOST_TOOLS:
        raise InvalidField(f"`tools` holds more than {MOST_TOOLS}", param="tools")
    tools: dict[str, Tool] = {}
    for index, one in enumerate(said):
        place = f"tools[{index}]"
        if one.type not in (None, "function"):
            kind = json.dumps(one.type[:64])
            raise UnsupportedField(f"`{place}` is of type {kind}; only functions are supported", param=f"{place}.type")
        if one.function is None:
            raise InvalidField(f"`{place}.function` is missing", param=f"{place}.function")
        name = one.function.name
        if not NAME.fullmatch(name):
            raise InvalidField(
                f"`{place}.function.name` must be 1 to 64 letters, digits, underscores, dots or dashes",
                param=f"{place}.function.name",
            )
        if name in tools:
            raise InvalidField(f"`{place}.function.name` is there already", param=f"{place}.function.name")
        parameters = json.dumps(one.function.parameters or {}, ensure_ascii=False)
        tools[name] = Tool(name, one.function.description or "", parameters)
    return tuple(tools.values())


def _named(choice: Any, tools: Sequence[Tool], place: str) -> str:
    """The function that an object {"type": "function", "function": {"name": ...}} names."""
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            pass
        case {"type": "custom"}:
            raise UnsupportedField("tools of the type `custom` are not supported", param=place)
        case _:
            raise InvalidField(f"`{place}` does not name a function", param=place)
    if all(tool.name != name for tool in tools):
        raise InvalidField(f"`{place}` names {json.dumps(name[:64])}, which is not among `tools`", param=place)
    return name


def _allowed(tools: tuple[Tool, ...], said: Any) -> tuple[tuple[Tool, ...], str]:
    """Only the tools that are allowed are offered. Gives them, and the mode."""
    match said:
        case {"mode": ("auto" | "required") as mode, "tools": [*several]}:
            names = {_named(one, tools, "tool_choice") for one in several}
            return tuple(tool for tool in tools if tool.name in names), mode
    raise InvalidField("`tool_choice.allowed_tools` has no mode and tools", param="tool_choice")
