"""A grammar that a reply must be a call of a tool: `tool_choice` required, or a named function.

In Lark, as llguidance reads it; the spelling is that of the dialects' templates, which engine/calls.py reads.
Arguments are held to their schemas. `qwen3_coder` writes values without quotes: there types and enumerations hold,
and what a schema says beyond the type of a text (a pattern, a length) does not.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from lattice_cli.errors import UnsupportedField
from lattice_cli.job import Constraint, Tool, ToolSpeech
from lattice_cli.prompt.signature import Signature, types_of

# Between the tokens of JSON: at most a space, as templates print calls; a small model pads them else (user report 65).
_GUIDANCE = {"whitespace_pattern": r"\x20", "lenient": False}
# Of an answer also a line break and an indentation, as engine/guide.py has it.
_ANSWER_GUIDANCE = {"whitespace_pattern": r"[\x20\t]{1,8}|\r?\n[\x20\t]{0,32}", "lenient": False}
_PARAMETER_END = "\n</parameter>\n"


def call_constraint(speech: ToolSpeech, name: str | None = None, *, parallel: bool = True) -> Constraint:
    """Exactly one call of the tool `name`; without a name one of any tool, and with `parallel` more after it.

    Raises: UnsupportedField for a dialect that only mlx-lm reads.
    """
    tools = [tool for tool in speech.tools if name in (None, tool.name)]
    several = parallel and name is None
    rule_of = _RULES.get(speech.dialect)
    if rule_of is None:
        raise UnsupportedField(
            f"a call cannot be enforced in `{speech.dialect}`, the dialect of this model",
            param="tool_choice",
            hint="leave `tool_choice` at auto",
        )
    rules: list[str] = []
    calls = [rule_of(rules, number, tool) for number, tool in enumerate(tools)]
    rules.append(f"call: {' | '.join(calls)}")
    before, between, after = _AROUND[speech.dialect]
    more = f" ({_literal(between)} call)*" if several else ""
    start = f"start: {_literal(before)} call{more} {_literal(after)}".replace(' ""', "").replace(' "" ', " ")
    return Constraint("lark", "\n".join([start, *rules]) + "\n")


def answer_or_calls(schema: str, speech: ToolSpeech, *, parallel: bool = True) -> Constraint:
    """A reply that is JSON of a schema (its text; "{}" is any object), or calls and nothing else.

    Raises: UnsupportedField as `call_constraint`; ValueError for a schema that is no JSON.
    """
    said = json.loads(schema)
    if said is False:
        raise ValueError("nothing can fulfil it")
    answer = _json(
        said if isinstance(said, dict) and said else {"type": "object"} if said == {} else {}, _ANSWER_GUIDANCE
    )
    calls, _, rules = call_constraint(speech, parallel=parallel).text.partition("\n")
    lines = ["start: answer | calls", f"answer: {answer}", f"calls: {calls.removeprefix('start: ')}"]
    return Constraint("lark", "\n".join(lines) + f"\n{rules}")


def _json_call(key: str, before: str = "", after: str = "") -> Callable[[list[str], int, Tool], str]:
    def rule(rules: list[str], number: int, tool: Tool) -> str:
        rules.append(f"args{number}: {_json(_arguments(tool))}")
        named = f'{before}{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{key}": '
        return f"{_literal(named)} args{number} {_literal('}' + after)}"

    return rule


def _xml_call(rules: list[str], number: int, tool: Tool) -> str:
    signature = Signature(tool)
    asked = signature.schema.get("required")
    required = frozenset(one for one in asked if isinstance(one, str)) if isinstance(asked, list) else frozenset()
    parts = [_literal(f"<tool_call>\n<function={tool.name}>\n")]
    for at, (key, schema) in enumerate(signature.properties.items()):
        rule = f"p{number}_{at}"
        values = _values(rules, rule, schema, signature)
        rules.append(f"{rule}: {_literal(f'<parameter={key}>' + chr(10))} ({' | '.join(values)})")
        parts.append(rule if key in required else f"{rule}?")
    return " ".join([*parts, _literal("</function>\n</tool_call>")])


def _values(rules: list[str], rule: str, schema: Any, signature: Signature) -> list[str]:
    """Alternatives of one parameter's value, each with the marker that ends it."""
    end = _literal(_PARAMETER_END)
    choices = schema.get("enum") if isinstance(schema, dict) else None
    if isinstance(choices, list) and choices:
        spelled = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in choices]
        return [_literal(one + _PARAMETER_END) for one in spelled]
    types = types_of(schema, signature.schema)
    if not types or "string" in types:
        rules.append(f"{rule}_text[suffix={end}]: /(?s:.*)/")
        return [f"{rule}_text"]
    found = []
    if "boolean" in types:
        found += [_literal(word + _PARAMETER_END) for word in ("true", "false", "True", "False")]
    if "null" in types:
        found.append(_literal("null" + _PARAMETER_END))
    rest = types - {"boolean", "null"}
    if rest:
        shared = {key: signature.schema[key] for key in ("$defs", "definitions") if key in signature.schema}
        rules.append(f"{rule}_json: {_json({**shared, **(schema if isinstance(schema, dict) else {})})}")
        found.append(f"{rule}_json {end}")
    return found


_RULES: Mapping[str, Callable[[list[str], int, Tool], str]] = {
    "json": _json_call("arguments", "<tool_call>\n", "\n</tool_call>"),
    "qwen3_coder": _xml_call,
    "mistral": _json_call("arguments"),
    "llama3_json": _json_call("parameters"),
}
# What comes before the first call, between two, and after the last.
_AROUND = {
    "json": ("", "\n", ""),
    "qwen3_coder": ("", "\n", ""),
    "mistral": ("[TOOL_CALLS][", ", ", "]"),
    "llama3_json": ("", "; ", ""),
}


def _arguments(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments; names that it does not have are not made up."""
    schema = dict(Signature(tool).schema)
    schema.setdefault("type", "object")
    schema.setdefault("properties", {})
    if not schema.keys() & {"additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref"}:
        schema["additionalProperties"] = False
    return schema


def _json(schema: Mapping[str, Any], guidance: Mapping[str, Any] = _GUIDANCE) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": guidance}, ensure_ascii=False)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
