"""Calls of tools through the whole server: offered, made, streamed, sent back; over every dialect of ours.

Thread: any
"""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice_cli.prompt.template import BARE_CHATML
from tests.serve.stage import PATH, Stage, body, stage, with_settings

pytestmark = pytest.mark.wire

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD = {"type": "function", "function": {"name": "add", "parameters": NUMBERS}}
MUL = {"type": "function", "function": {"name": "mul", "parameters": NUMBERS}}
TOOLS = [ADD, MUL]
FIRST = '<tool_call>\n{"name": "mul", "arguments": {"a": 3, "b": 12}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "add", "arguments": {"a": 11, "b": 49}}\n</tool_call>'
XML = "<tool_call>\n<function=mul>\n<parameter=a>\n3\n</parameter>\n<parameter=b>\n12\n</parameter>\n"
XML += "</function>\n</tool_call>"
TOLD = ("mul", {"a": 3, "b": 12})
TOLD_TOO = ("add", {"a": 11, "b": 49})


def events(response: httpx2.Response) -> list[Any]:
    found = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    assert found.pop() == "[DONE]"
    return [json.loads(data) for data in found]


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in message.get("tool_calls") or []]
    return [(one["name"], json.loads(one["arguments"])) for one in functions]


def joined(told: list[Any]) -> dict[str, Any]:
    """The message that a stream's deltas come to, as an SDK joins them, and its finish."""
    message: dict[str, Any] = {"content": None, "reasoning": "", "tool_calls": []}
    finish = None
    for choice in (event["choices"][0] for event in told):
        delta, finish = choice["delta"], choice["finish_reason"] or finish
        if delta.get("content"):
            message["content"] = (message["content"] or "") + delta["content"]
        message["reasoning"] += delta.get("reasoning_content", "")
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                assert part["index"] == len(message["tool_calls"]) and part["type"] == "function"
                message["tool_calls"].append({"id": part["id"], "function": {"name": "", "arguments": ""}})
            function = message["tool_calls"][part["index"]]["function"]
            for key, value in part["function"].items():
                function[key] += value
    return {**message, "finish": finish}


def both(house: Stage, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same request plain and streamed, in one shape."""
    with house.client() as one:
        plain = one.post(PATH, json=body(**fields))
        assert plain.status_code == 200, plain.text
        (choice,) = plain.json()["choices"]
        streamed = joined(events(one.post(PATH, json=body(stream=True, **fields))))
    message = {"reasoning": "", "tool_calls": [], **choice["message"], "finish": choice["finish_reason"]}
    return message, streamed


def same(house: Stage, **fields: Any) -> tuple[str | None, list[tuple[str, Any]], str]:
    """Content, calls and finish, which are the same in both modes."""
    plain, streamed = both(house, **fields)
    told = (plain["content"], calls_of(plain), plain["finish"])
    assert told == (streamed["content"], calls_of(streamed), streamed["finish"])
    ids = [call["id"] for message in (plain, streamed) for call in message["tool_calls"]]
    assert len(set(ids)) == len(ids) and all(one.startswith("call_") for one in ids)
    return told


def test_a_call_is_told_in_both_modes_without_its_markup() -> None:
    """Reports 30 and 34."""
    with stage([{"tokens": [FIRST]}], tool_parser="json") as house:
        assert same(house, tools=TOOLS) == (None, [TOLD], "tool_calls")
    with stage([{"tokens": [XML]}], tool_parser="qwen3_coder") as house:
        assert same(house, tools=TOOLS) == (None, [TOLD], "tool_calls")


def test_two_calls_are_two_and_text_around_them_stays() -> None:
    """Reports 32, 33 and 41."""
    with stage([{"tokens": ["Let me see.\n", FIRST, "\n", SECOND, " Done"]}], tool_parser="json") as house:
        content, calls, finish = same(house, tools=TOOLS)
    assert (calls, finish) == ([TOLD, TOLD_TOO], "tool_calls")
    assert content is not None and content.startswith("Let me see.") and content.endswith("Done")


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_reply_is_the_same_however_its_tokens_are_cut(data: st.DataObject) -> None:
    """Reports 1, 31 and 57: thoughts, text and calls; streamed text joined is the plain reply."""
    text = f"<think>héhé</think>\n\nSo: 😀 {FIRST}\n{SECOND}"
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=40)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    reply = {"tokens": [{"hex": piece.hex()} for piece in pieces]}
    with stage([reply], think=["<think>", "</think>"], tool_parser="json") as house:
        plain, streamed = both(house, tools=TOOLS)
    for told in (plain, streamed):
        assert told["reasoning"] == "héhé"
        assert (told["content"].rstrip(), calls_of(told), told["finish"]) == ("So: 😀", [TOLD, TOLD_TOO], "tool_calls")
    assert plain["content"] == streamed["content"]


def test_arguments_come_in_fragments_as_they_are_made() -> None:
    """Reports 18 and 22: in one lump at the end, and no byte meanwhile."""
    letters = [*FIRST]
    with stage([{"tokens": letters}], tool_parser="json") as house, house.client() as one:
        told = events(one.post(PATH, json=body(stream=True, tools=TOOLS)))
    parts = [part for event in told for part in event["choices"][0]["delta"].get("tool_calls", ())]
    assert parts[0]["function"]["name"] == "mul"
    assert len([part for part in parts if part["function"]["arguments"]]) > 5
    assert all(part["index"] == 0 for part in parts)


def test_a_reply_cut_in_a_call_says_length_and_loses_nothing() -> None:
    """Report 34."""
    with stage([{"tokens": [*FIRST]}], tool_parser="json") as house:
        plain, streamed = both(house, tools=TOOLS, max_tokens=45)
    assert plain["finish"] == streamed["finish"] == "length"
    assert plain["content"] == streamed["content"]


def test_stops_do_not_look_into_calls() -> None:
    """Report 34: agents drop a call whose reply does not end as one, whatever came after it."""
    with stage([{"tokens": [FIRST, " END of it"]}], tool_parser="json") as house:
        content, calls, finish = same(house, tools=TOOLS, stop=["mul", "END"])
    assert (calls, finish) == ([TOLD], "tool_calls")
    assert not (content or "").strip()


@pytest.mark.parametrize(
    "fields",
    [{}, {"tools": []}, {"tools": None}, {"tool_choice": "none"}, {"tools": TOOLS, "tool_choice": "none"}],
)
def test_where_nothing_can_be_called_json_is_text(fields: dict[str, Any]) -> None:
    """Reports 42, 43 and 44: made-up calls."""
    text = '[{"name": "apple", "arguments": {}}]'
    with stage([{"tokens": [text]}], tool_parser="json") as house, house.client() as one:
        (choice,) = one.post(PATH, json=body(**fields)).json()["choices"]
    message = {"role": "assistant", "content": text, "refusal": None}
    assert choice == {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}


def test_one_call_at_the_most_where_more_are_not_wanted() -> None:
    with stage([{"tokens": [FIRST, "\n", SECOND]}], tool_parser="json") as house:
        _, calls, finish = same(house, tools=TOOLS, parallel_tool_calls=False)
    assert (calls, finish) == ([TOLD], "tool_calls")


@pytest.mark.parametrize("parser", ["json", "qwen3_coder"])
def test_a_call_that_must_be_made_is_enforced(parser: str) -> None:
    """Report 42: a script that says something else breaks the promise, and is a failure."""
    spelled = FIRST if parser == "json" else XML
    named = {"type": "function", "function": {"name": "mul"}}
    replies = [{"when": "prose", "tokens": ["Sure!"]}, {"tokens": [*spelled]}]
    with stage(replies, tool_parser=parser) as house, house.client() as one:
        for choice in ("required", named):
            assert same(house, tools=TOOLS, tool_choice=choice) == (None, [TOLD], "tool_calls")
            refused = one.post(PATH, json=body("prose", tools=TOOLS, tool_choice=choice))
            assert (refused.status_code, refused.json()["error"]["code"]) == (500, "internal_error")
        other = {"type": "function", "function": {"name": "add"}}
        assert one.post(PATH, json=body(tools=TOOLS, tool_choice=other)).status_code == 500


def test_a_template_that_cannot_offer_tools_is_told_unless_we_may() -> None:
    """The hint says how; a choice of none needs nobody to offer them."""
    with stage([{"tokens": [FIRST]}]) as house, house.client() as one:
        error = one.post(PATH, json=body(tools=TOOLS)).json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_feature", "tools")
        assert "--tool-fallback hermes" in error["message"]
        assert one.post(PATH, json=body(tools=TOOLS, tool_choice="none")).status_code == 200
    fallback = with_settings(tool_fallback=True)
    with stage([{"tokens": [FIRST]}], settings=fallback, chat_template=BARE_CHATML) as house:
        assert same(house, tools=TOOLS) == (None, [TOLD], "tool_calls")
        with house.client() as one:
            tokens = [one.post("/tokenize", json={**body(), **more}).json()["count"] for more in ({}, {"tools": TOOLS})]
        assert tokens[1] > tokens[0]


def test_thoughts_come_before_a_call_that_must_be_made() -> None:
    replies = [{"tokens": ["<think>", "hm", "</think>", "\n\n", *FIRST]}]
    with stage(replies, think=["<think>", "</think>"], tool_parser="json") as house:
        plain, streamed = both(house, tools=TOOLS, tool_choice="required")
    for told in (plain, streamed):
        assert (told["reasoning"], calls_of(told), told["finish"]) == ("hm", [TOLD], "tool_calls")


PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ('{"name": "Ann"}', ('{"name": "Ann"}', [], "stop")),
        (FIRST, (None, [TOLD], "tool_calls")),
        (f"{FIRST}\n{SECOND}", (None, [TOLD, TOLD_TOO], "tool_calls")),
    ],
)
def test_a_reply_is_of_the_schema_or_calls(reply: str, told: Any) -> None:
    """Agents send both: tools to be used, and what their answer must be in the end."""
    with stage([{"tokens": [*reply]}], tool_parser="json") as house:
        assert same(house, tools=TOOLS, response_format=FORMAT) == told


def test_a_reply_that_is_neither_of_the_schema_nor_a_call_is_a_failure() -> None:
    replies = [{"when": "prose", "tokens": ["Sure!"]}, {"tokens": ['{"age": 7}']}]
    with stage(replies, tool_parser="json") as house, house.client() as one:
        for content in ("prose", "age"):
            answer = one.post(PATH, json=body(content, tools=TOOLS, response_format=FORMAT))
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"guided_regex": "a"}, "unsupported_feature", "guided_regex"),
        ({"guided_choice": ["a"]}, "unsupported_feature", "guided_choice"),
        ({"guided_json": "{"}, "invalid_request", "guided_json"),
        ({"guided_json": {"type": "banana"}}, "invalid_request", "guided_json"),
    ],
)
def test_other_bounds_beside_tools_are_refused_by_name(fields: dict[str, Any], code: str, param: str) -> None:
    with stage([{"tokens": [FIRST]}], tool_parser="json") as house, house.client() as one:
        error = one.post(PATH, json=body(tools=TOOLS, **fields)).json()["error"]
        assert (error["code"], error["param"]) == (code, param)
        assert one.post(PATH, json=body(tools=TOOLS, tool_choice="none", guided_regex=".*")).status_code in (200, 500)
