"""Grammars for calls, in llguidance's hands: what the dialects spell passes, everything else does not.

Thread: any
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice_cli.engine.calls import CallFragment, call_parser
from lattice_cli.errors import UnsupportedField
from lattice_cli.job import Constraint, Tool, ToolSpeech
from lattice_cli.prompt.call_grammar import call_constraint

pytestmark = pytest.mark.pure

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "unit": {"enum": ["c", "f"]},
        "exact": {"type": "boolean"},
        "more": {"type": "object", "properties": {"k": {"type": "string"}}, "additionalProperties": False},
    },
    "required": ["city"],
}
TOOLS = (Tool("weather", "", json.dumps(SCHEMA)), Tool("now"))
JSON_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
XML_CALL = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
XML_WEATHER = (
    "<tool_call>\n<function=weather>\n"
    "<parameter=city>\nOslo\n</p> < here\n</parameter>\n"
    "<parameter=days>\n5\n</parameter>\n"
    "<parameter=unit>\nc\n</parameter>\n"
    "<parameter=exact>\nTrue\n</parameter>\n"
    '<parameter=more>\n{"k": "v"}\n</parameter>\n'
    "</function>\n</tool_call>"
)


class Bytes:
    """A vocabulary of single bytes, and an end."""

    is_tokenizer_wrapper = True
    bos_token_id, eos_token_id, special_token_ids = None, 256, (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"")

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


@cache
def matcher(constraint: Constraint) -> Any:
    library = llguidance.LLTokenizer(Bytes(), eos_token=[256])  # type: ignore[arg-type]
    made = llguidance.LLMatcher(library, llguidance.LLMatcher.grammar_from_lark(constraint.text), log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def passes(constraint: Constraint, text: str) -> bool:
    """Whether the whole of `text` is what the grammar asks for."""
    one = matcher(constraint).deep_copy()
    data = text.encode()
    return one.try_consume_tokens(list(data)) == len(data) and one.is_accepting()


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("json", JSON_CALL),
        ("json", f"{JSON_CALL}\n{JSON_CALL}"),
        (
            "json",
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 3, "unit": "f"}}\n</tool_call>',
        ),
        ("json", '<tool_call>\n{"name": "weather", "arguments": {"city":"Oslo","days":3}}\n</tool_call>'),
        ("qwen3_coder", XML_CALL),
        ("qwen3_coder", XML_WEATHER),
        ("qwen3_coder", f"{XML_WEATHER}\n{XML_CALL}"),
        ("mistral", '[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]'),
        ("llama3_json", '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}'),
    ],
)
def test_what_a_dialect_spells_passes_and_is_read_as_calls(dialect: str, text: str) -> None:
    """Required, and the parser finds nothing but calls in it."""
    speech = ToolSpeech(dialect, TOOLS)
    assert passes(call_constraint(speech), text)
    parser = call_parser(speech)
    parts = [*parser.push(text), *parser.flush()]
    assert all(isinstance(part, CallFragment) for part in parts) and parts


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("json", "Hello"),
        ("json", ""),
        ("json", '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'),
        ("json", '<tool_call>\n{"name": "now", "arguments": {"made": "up"}}\n</tool_call>'),
        ("json", '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'),
        ("json", '<tool_call>\n{"name": "weather", "arguments": {"city": "x", "days": 10}}\n</tool_call>'),
        ("json", '<tool_call>\n{"name": "now", "arguments": {\n}}\n</tool_call>'),
        ("qwen3_coder", "<tool_call>\n<function=weather>\n</function>\n</tool_call>"),
        ("qwen3_coder", XML_WEATHER.replace("\n5\n", "\nfive\n")),
        ("qwen3_coder", XML_WEATHER.replace("\nc\n", "\nk\n")),
        ("qwen3_coder", XML_WEATHER.replace("=city", "=town")),
        ("llama3_json", '{"name": "weather", "parameters": {"days": 1}}'),
    ],
)
def test_what_is_no_call_of_an_offered_tool_does_not_pass(dialect: str, text: str) -> None:
    assert not passes(call_constraint(ToolSpeech(dialect, TOOLS)), text)


@pytest.mark.parametrize(
    ("dialect", "one", "two"),
    [("json", JSON_CALL, f"{JSON_CALL}\n{JSON_CALL}"), ("qwen3_coder", XML_CALL, f"{XML_CALL}\n{XML_CALL}")],
)
def test_a_named_tool_or_no_parallel_calls_is_exactly_one(dialect: str, one: str, two: str) -> None:
    speech = ToolSpeech(dialect, TOOLS)
    for constraint in (call_constraint(speech, "now"), call_constraint(speech, parallel=False)):
        assert passes(constraint, one) and not passes(constraint, two)
    assert not passes(call_constraint(speech, "weather"), one)


def test_a_dialect_that_only_mlx_lm_reads_cannot_be_enforced() -> None:
    with pytest.raises(UnsupportedField) as refused:
        call_constraint(ToolSpeech("glm47", TOOLS))
    assert (refused.value.param, refused.value.status) == ("tool_choice", 400)


names = st.text(st.characters(categories=("L", "N"), include_characters="_-. "), min_size=1, max_size=8)
leaves = st.sampled_from(
    [{"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"enum": ["a\nb", 'q"', 3]}, {}]
)


@given(st.dictionaries(names, leaves, max_size=4), st.sampled_from(["json", "qwen3_coder", "mistral", "llama3_json"]))
@settings(max_examples=40, deadline=None)
def test_any_schema_makes_a_grammar(properties: dict[str, Any], dialect: str) -> None:
    tool = Tool("t", "", json.dumps({"type": "object", "properties": properties, "required": sorted(properties)[:1]}))
    matcher(call_constraint(ToolSpeech(dialect, (tool, Tool("u")))))
