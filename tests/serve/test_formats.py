"""The fields that bound a reply's text -> a constraint, compiled before anything is queued.

Thread: any
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice_cli.errors import BadRequest
from lattice_cli.job import Constraint
from lattice_cli.serve.wire.formats import Bound, FormatFields, bound_of
from lattice_cli.wording import read_fields
from tests.serve.stage import PATH, body, stage

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TEXT = json.dumps(SCHEMA)
FORMAT = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": SCHEMA}}


def read(**fields: Any) -> Bound | None:
    return bound_of(read_fields(fields, FormatFields))


@pytest.mark.pure
@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({}, None),
        (dict.fromkeys(FormatFields.__struct_fields__), None),
        ({"response_format": {"type": "text"}, "structured_outputs": {}, "json_schema": {}, "grammar": ""}, None),
        ({"structured_outputs": {"json": None, "json_object": False}}, None),
        ({"response_format": {"type": "json_object"}}, (Constraint("json_schema", "{}"), "response_format")),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            (Constraint("json_schema", TEXT), "response_format"),
        ),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA}},
            (Constraint("json_schema", TEXT), "response_format.schema"),
        ),
        ({"response_format": FORMAT}, (Constraint("json_schema", TEXT), "response_format.json_schema.schema")),
        ({"guided_json": SCHEMA}, (Constraint("json_schema", TEXT), "guided_json")),
        ({"guided_json": TEXT}, (Constraint("json_schema", TEXT), "guided_json")),
        ({"guided_regex": "a+"}, (Constraint("regex", "a+"), "guided_regex")),
        ({"guided_grammar": 'start: "a"'}, (Constraint("lark", 'start: "a"'), "guided_grammar")),
        ({"guided_choice": ["a", "é"]}, (Constraint("choice", '["a", "é"]'), "guided_choice")),
        ({"json_schema": SCHEMA}, (Constraint("json_schema", TEXT), "json_schema")),
        ({"grammar": 'root ::= "a"'}, (Constraint("lark", 'root ::= "a"'), "grammar")),
        ({"structured_outputs": {"json": SCHEMA}}, (Constraint("json_schema", TEXT), "structured_outputs.json")),
        ({"structured_outputs": {"regex": "a+"}}, (Constraint("regex", "a+"), "structured_outputs.regex")),
        ({"structured_outputs": {"choice": ["a"]}}, (Constraint("choice", '["a"]'), "structured_outputs.choice")),
        ({"structured_outputs": {"grammar": "x"}}, (Constraint("lark", "x"), "structured_outputs.grammar")),
        (
            {"structured_outputs": {"json_object": True}},
            (Constraint("json_schema", "{}"), "structured_outputs.json_object"),
        ),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_every_spelling_is_one_constraint(fields: dict[str, Any], bound: Any) -> None:
    assert read(**fields) == bound


@pytest.mark.pure
@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"response_format": "json"}, "invalid_request", "response_format"),
        ({"response_format": {}}, "invalid_request", "response_format.type"),
        ({"response_format": {"type": "xml"}}, "invalid_request", "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "invalid_request", "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "p"}}},
            "invalid_request",
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}},
            "invalid_request",
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}},
            "invalid_request",
            "response_format.json_schema",
        ),
        ({"response_format": {**FORMAT, "type": "text"}}, "invalid_request", "response_format.json_schema"),
        ({"response_format": {**FORMAT, "schema": SCHEMA}}, "invalid_request", "response_format.json_schema"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "invalid_request", "response_format.schema"),
        ({"guided_choice": "a"}, "invalid_request", "guided_choice"),
        ({"guided_choice": [1]}, "invalid_request", "guided_choice[0]"),
        ({"guided_json": [1]}, "invalid_request", "guided_json"),
        ({"structured_outputs": {"json": 5}}, "invalid_request", "structured_outputs.json"),
        ({"structured_outputs": {"structural_tag": "x"}}, "unsupported_feature", "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "invalid_request", "structured_outputs.regex"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "invalid_request", "guided_json"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_what_makes_no_sense_is_refused_with_its_place(fields: dict[str, Any], code: str, param: str) -> None:
    """Report 64."""
    with pytest.raises(BadRequest) as refused:
        read(**fields)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, code, param)


@pytest.mark.wire
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": {"type": "string", "pattern": "("}}, "guided_json"),
        ({"guided_json": {"type": "banana"}}, "guided_json"),
        ({"guided_json": {"$ref": "#/nowhere"}}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "banana"}}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_grammar": "start: nowhere"}, "guided_grammar"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_what_cannot_be_enforced_is_refused_before_it_is_queued(fields: dict[str, Any], param: str) -> None:
    """Report 64: such a schema gave free text with 200, or a 500."""
    with stage() as house, house.client() as one:
        answer = one.post(PATH, json=body(stream=True, **fields))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_request", param)
        assert "cannot be enforced: " in error["message"]
        assert house.worker.accepted == 0


PERSON = '{"name": "Ann", "age": 7}'
REPLIES: list[dict[str, Any]] = [
    {"when": "think", "tokens": ["<think>", 'so {"', "</think>", "\n\n", *PERSON]},
    {"when": "bad", "tokens": ["Sure, here it is"]},
    {"when": "more", "tokens": [*PERSON, " Anything", " else?"]},
    {"tokens": [*PERSON]},
]


@pytest.mark.wire
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("content", "thought"), [("think", 'so {"'), ("plain", ""), ("more", "")], ids=["think", "plain", "more"]
)
def test_a_schema_holds_after_thoughts_and_without(content: str, thought: str, stream: bool) -> None:
    """Reports 59, 61, 63 and 65: the reply ends where the schema is fulfilled, streamed or not."""
    with stage(REPLIES, think=["<think>", "</think>"]) as house, house.openai() as one:
        asked: dict[str, Any] = {
            "model": "",
            "messages": [{"role": "user", "content": content}],
            "response_format": FORMAT,
        }
        if stream:
            deltas = [chunk.choices[0] for chunk in one.chat.completions.create(stream=True, **asked)]
            text = "".join(one.delta.content or "" for one in deltas)
            thoughts = "".join(getattr(one.delta, "reasoning_content", "") for one in deltas)
            reason = deltas[-1].finish_reason
        else:
            (choice,) = one.chat.completions.create(**asked).choices
            text, reason = choice.message.content, choice.finish_reason
            thoughts = getattr(choice.message, "reasoning_content", "")
    assert (text, thoughts, reason) == (PERSON, thought, "stop")


@pytest.mark.wire
def test_a_reply_that_breaks_its_promise_is_a_failure_and_no_text() -> None:
    """Report 63: prose came back with 200."""
    with stage(REPLIES) as house, house.client() as one:
        answer = one.post(PATH, json=body("bad", response_format=FORMAT))
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        told = one.post(PATH, json=body("bad", response_format=FORMAT, stream=True))
        assert '"error"' in told.text or told.status_code == 500
        assert '"finish_reason":"stop"' not in told.text
        assert one.post(PATH, json=body("plain", response_format=FORMAT)).status_code == 200
