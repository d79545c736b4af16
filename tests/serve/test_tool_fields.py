"""The fields of a request that offer tools -> a ToolAsk, or a refusal that names the place.

Thread: any
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice_cli.errors import BadRequest
from lattice_cli.job import Tool
from lattice_cli.serve.wire.tools import ToolAsk, ToolFields, tools_of
from lattice_cli.wording import read_fields

pytestmark = pytest.mark.pure

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TIME = {"type": "function", "function": {"name": "get_time"}}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA, "strict": True},
}
TIME_TOOL = Tool("get_time")
WEATHER_TOOL = Tool("get_weather", "The weather.", json.dumps(SCHEMA))
BOTH = [TIME, WEATHER]
TOOLS = (TIME_TOOL, WEATHER_TOOL)


def read(**fields: Any) -> ToolAsk | None:
    return tools_of(read_fields(fields, ToolFields))


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


@pytest.mark.parametrize(
    ("fields", "ask"),
    [
        ({}, None),
        ({"tools": None, "tool_choice": None, "parallel_tool_calls": None}, None),
        ({"tools": [], "tool_choice": "none"}, None),
        ({"tool_choice": "none"}, None),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, None),
        ({"tools": BOTH, "tool_choice": "none"}, None),
        ({"tools": BOTH}, ToolAsk(TOOLS)),
        ({"tools": BOTH, "tool_choice": "auto", "parallel_tool_calls": True}, ToolAsk(TOOLS)),
        ({"tools": BOTH, "parallel_tool_calls": False}, ToolAsk(TOOLS, parallel=False)),
        ({"tools": BOTH, "tool_choice": "required"}, ToolAsk(TOOLS, "required")),
        ({"tools": BOTH, "tool_choice": named("get_time")}, ToolAsk(TOOLS, "named", "get_time")),
        ({"tools": BOTH, "tool_choice": allowed("auto", "get_time")}, ToolAsk((TIME_TOOL,))),
        ({"tools": BOTH, "tool_choice": allowed("required", "get_weather")}, ToolAsk((WEATHER_TOOL,), "required")),
    ],
)
def test_every_choice_is_heard(fields: dict[str, Any], ask: ToolAsk | None) -> None:
    """Reports 42, 43 and 44: `none`, `required` and a name were all taken for `auto`, or refused without tools."""
    assert read(**fields) == ask


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"type": "object", "properties": {}}])
def test_a_tool_may_have_no_parameters(parameters: Any) -> None:
    """Report 51: keys missing, `{}`, an object without properties, no description."""
    ask = read(tools=[{"type": "function", "function": {"name": "f", "parameters": parameters, "description": None}}])
    assert ask == ToolAsk((Tool("f", "", json.dumps(parameters or {})),))


def offered(**function: Any) -> dict[str, Any]:
    return {"tools": [TIME, {"type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tools": {}}, "invalid_request", "tools"),
        ({"tools": ["get_time"]}, "invalid_request", "tools[0]"),
        ({"tools": [{"type": "function"}]}, "invalid_request", "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "unsupported_feature", "tools[0].type"),
        (offered(), "invalid_request", "tools[1].function.name"),
        (offered(name=""), "invalid_request", "tools[1].function.name"),
        (offered(name="no spaces"), "invalid_request", "tools[1].function.name"),
        (offered(name="é"), "invalid_request", "tools[1].function.name"),
        (offered(name="x" * 65), "invalid_request", "tools[1].function.name"),
        (offered(name="get_time"), "invalid_request", "tools[1].function.name"),
        (offered(name="f", parameters=[]), "invalid_request", "tools[1].function.parameters"),
        (offered(name="f", parameters="{}"), "invalid_request", "tools[1].function.parameters"),
        (offered(name="f", description=5), "invalid_request", "tools[1].function.description"),
        ({"tools": [named(f"f{number}") for number in range(129)]}, "invalid_request", "tools"),
        ({"tools": BOTH, "tool_choice": "banana"}, "invalid_request", "tool_choice"),
        ({"tools": BOTH, "tool_choice": 5}, "invalid_request", "tool_choice"),
        ({"tools": BOTH, "tool_choice": {}}, "invalid_request", "tool_choice"),
        ({"tools": BOTH, "tool_choice": {"type": "function"}}, "invalid_request", "tool_choice"),
        ({"tools": BOTH, "tool_choice": named("get_news")}, "invalid_request", "tool_choice"),
        ({"tools": BOTH, "tool_choice": {"type": "custom"}}, "unsupported_feature", "tool_choice"),
        ({"tools": BOTH, "tool_choice": {"type": "allowed_tools"}}, "invalid_request", "tool_choice"),
        ({"tools": BOTH, "tool_choice": allowed("auto", "get_news")}, "invalid_request", "tool_choice"),
        ({"tools": BOTH, "tool_choice": allowed("never", "get_time")}, "invalid_request", "tool_choice"),
        ({"tool_choice": "required"}, "invalid_request", "tool_choice"),
        ({"tools": [], "tool_choice": named("f")}, "invalid_request", "tool_choice"),
        ({"tools": BOTH, "parallel_tool_calls": "no"}, "invalid_request", "parallel_tool_calls"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_what_cannot_be_is_refused_with_its_place(fields: dict[str, Any], code: str, param: str) -> None:
    """Report 42: bad values are 400."""
    with pytest.raises(BadRequest) as refused:
        read(**fields)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, code, param)
