"""Calls in dialects that mlx-lm reads: name and whole arguments at the end, or the text as it was.

Thread: any
"""

from __future__ import annotations

import json

import pytest

from lattice_cli.engine.call_stage import CallFragment
from lattice_cli.engine.calls import call_parser, knows
from lattice_cli.job import Tool, ToolSpeech

pytestmark = pytest.mark.tiny

TOOLS = (
    Tool(
        "get_weather", "", '{"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}'
    ),
)
CALLS = {
    "glm47": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>",
    "pythonic": '<|tool_call_start|>[get_weather(city="Oslo")]<|tool_call_end|>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
    "longcat": "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
    "<longcat_arg_value>Oslo</longcat_arg_value>\n</longcat_tool_call>",
}


@pytest.mark.parametrize("dialect", CALLS)
def test_a_call_is_read_whole_wherever_it_is_split(dialect: str) -> None:
    assert knows(dialect)
    text = f"Well. {CALLS[dialect]}\n"
    for at in range(len(text)):
        parser = call_parser(ToolSpeech(dialect, TOOLS))
        parts = [*parser.push(text[:at]), *parser.push(text[at:]), *parser.flush()]
        assert "".join(part for part in parts if isinstance(part, str)) == "Well. "
        name, arguments = [part for part in parts if isinstance(part, CallFragment)]
        assert (name.index, name.name) == (0, "get_weather")
        assert json.loads(arguments.arguments) == {"city": "Oslo"}


@pytest.mark.parametrize("dialect", CALLS)
@pytest.mark.parametrize("cut", [0.3, 0.6])
def test_what_the_parser_cannot_read_is_content(dialect: str, cut: float) -> None:
    """User report 37: whatever it raises."""
    for text in (CALLS[dialect][: int(len(CALLS[dialect]) * cut)], CALLS[dialect].replace("get_weather", "((")):
        parser = call_parser(ToolSpeech(dialect, TOOLS))
        parts = [*parser.push(text), *parser.flush()]
        said = "".join(part for part in parts if isinstance(part, str))
        assert said == text or any(isinstance(part, CallFragment) for part in parts)
