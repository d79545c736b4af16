"""lattice_serve 0.5.0's request: what it makes of things, and its framework's words for what it cannot read.

Thread: any
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice_cli.conversation import said
from lattice_cli.errors import LatticeError
from lattice_cli.job import SamplingChoice
from lattice_cli.serve.wire import Ask
from lattice_cli.serve.wire.lattice_050 import ChatDialect, Lattice050

pytestmark = pytest.mark.pure

HI = {"role": "user", "content": "hi"}
WIRE = Lattice050()
TEXT = "text/plain; charset=utf-8"
SYNTAX = "Failed to parse the request body as JSON: "
DATA = "Failed to deserialize the JSON body into the target type: "


def parse(**fields: Any) -> Ask:
    return ChatDialect().parse(json.dumps({"messages": [HI], **fields}).encode())


def page_of(body: bytes) -> tuple[int, str, str]:
    with pytest.raises(LatticeError) as refused:
        ChatDialect().parse(body)
    status, media_type, said_bytes = WIRE.refusal(refused.value)
    return status, media_type, said_bytes.decode()


def content(value: Any) -> str:
    (turn,) = parse(messages=[{"role": "user", "content": value}]).turns
    return turn.text


def test_every_field_it_knows_arrives() -> None:
    ask = parse(
        model="m", temperature=-1, top_p=2, top_k=3, max_tokens=0, seed=4, stream=True, repetition_penalty=1.3,
        reasoning_budget=5,
    )  # fmt: skip
    assert ask == Ask(
        turns=(said("user", "hi"),), model="m", sampling=SamplingChoice(0.0, 3, 1.0, None, 1.3, seed=4), max_tokens=0,
        reasoning_budget=5, stream=True,
    )  # fmt: skip


def test_fields_it_does_not_know_are_passed_over() -> None:
    unknown = {"max_completion_tokens": 3, "tools": [{}], "tool_choice": "required", "n": 9, "stop": "x", "logprobs": 1,
               "response_format": {"type": "json_object"}, "top_logprobs": -1, "stream_options": 5}  # fmt: skip
    assert parse(**unknown) == Ask(turns=(said("user", "hi"),))


def test_whoever_is_neither_system_nor_assistant_is_the_user() -> None:
    roles = ("system", "assistant", "user", "tool", "developer", "moderator", "")
    turns = parse(messages=[{"role": role, "content": "x"} for role in roles]).turns
    assert [turn.role for turn in turns] == ["system", "assistant", "user", "user", "user", "user", "user"]


def test_parts_without_text_are_dropped() -> None:
    image = {"type": "image_url", "image_url": {"url": "u"}}
    assert content([{"type": "text", "text": "a"}, image, {"text": "b"}, {"text": 5}, "c", None, 7]) == "ab"
    assert content([]) == ""


def test_a_content_that_is_no_text_is_written_out() -> None:
    assert content(None) == ""
    assert parse(messages=[{"role": "user"}, ["user"]]).turns == (said("user", ""), said("user", ""))
    assert content(5) == "5"
    assert content(True) == "true"
    assert content(2.0) == "2.0"
    assert content({"b": [1, "é\n"], "a": None}) == '{"a":null,"b":[1,"é\\n"]}'


def test_a_name_given_twice_inside_a_content_counts_last() -> None:
    body = b'{"messages":[{"role":"user","content":[{"text":"a","text":"b"}]}]}'
    assert ChatDialect().parse(body).turns == (said("user", "b"),)


def test_no_messages_are_its_own_refusal() -> None:
    told = '{"error":{"message":"`messages` must not be empty","type":"invalid_request_error"}}'
    assert page_of(b"{}") == page_of(b'{"messages":[]}') == page_of(b"[]") == (400, "application/json", told)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "EOF while parsing a value at line 1 column 0"),
        (b'{"messages":[{"role":"user"', "messages[0]: EOF while parsing an object at line 1 column 27"),
        (b'{"messages":[]} x', "trailing characters at line 1 column 17"),
        (b"{'messages':[]}", "key must be a string at line 1 column 2"),
        (b'{"temperature":NaN}', "temperature: expected value at line 1 column 16"),
        (b'{"model":"\xff"}', "model: invalid unicode code point at line 1 column 12"),
        (
            b'{"messages":[{"role":"user","content":"\\ud800"}]}',
            "messages[0].content: unexpected end of hex escape at line 1 column 46",
        ),
        (
            b'{"messages":[{"role":"user","content":%b1' % (b"[" * 125),
            f"messages[0].content{'[0]' * 124}: recursion limit exceeded at line 1 column 163",
        ),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_what_is_no_json_is_400_in_plain_text(body: bytes, told: str) -> None:
    assert page_of(body) == (400, TEXT, SYNTAX + told)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"null", "invalid type: null, expected struct ChatReq at line 1 column 4"),
        (b'{"messages":null}', "messages: invalid type: null, expected a sequence at line 1 column 16"),
        (b'{"messages":[{"content":"x"}]}', "messages[0]: missing field `role` at line 1 column 28"),
        (b'{"messages":["x"]}', 'messages[0]: invalid type: string "x", expected struct InMsg at line 1 column 16'),
        (b'{"messages":[],"messages":[]}', "duplicate field `messages` at line 1 column 25"),
        (b'{"temperature":"hot"}', 'temperature: invalid type: string "hot", expected f32 at line 1 column 20'),
        (b'{"max_tokens":-1}', "max_tokens: invalid value: integer `-1`, expected usize at line 1 column 16"),
        (b'{"top_k":1.5}', "top_k: invalid type: floating point `1.5`, expected usize at line 1 column 12"),
        (b'{"seed":"7"}', 'seed: invalid type: string "7", expected u64 at line 1 column 11'),
        (b'{"stream":1}', "stream: invalid type: integer `1`, expected a boolean at line 1 column 11"),
        (b'{"model":5,"stream":', "model: invalid type: integer `5`, expected a string at line 1 column 10"),
    ],
    ids=repr,
)
def test_what_is_of_another_shape_is_422_in_plain_text(body: bytes, told: str) -> None:
    assert page_of(body) == (422, TEXT, DATA + told)


@pytest.mark.parametrize("media", ["application/json", "Application/JSON; charset=utf-8", "application/x.y+json"])
def test_json_has_several_names(media: str) -> None:
    WIRE.check_head(media, "gzip", None)


@pytest.mark.parametrize("media", [None, "", "text/json", "text/plain", "application/jsonl", "json", "application/xml"])
def test_other_content_types_are_415_in_plain_text(media: str | None) -> None:
    with pytest.raises(LatticeError) as refused:
        WIRE.check_head(media, None, 5)
    assert WIRE.refusal(refused.value) == (415, TEXT, b"Expected request with `Content-Type: application/json`")


def test_a_body_over_the_limit_is_413_in_plain_text() -> None:
    page = WIRE.refusal(WIRE.too_large(1))
    assert page == (413, TEXT, b"Failed to buffer the request body: length limit exceeded")
