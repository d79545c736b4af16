"""lattice_serve 0.6.1's request: every behaviour tested at the end of its source, its limits and its order of checks.

Thread: any
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice_cli.conversation import said
from lattice_cli.errors import BadRequest
from lattice_cli.job import SamplingChoice
from lattice_cli.serve.wire import Ask
from lattice_cli.serve.wire.lattice_061 import ChatDialect

pytestmark = pytest.mark.pure

HI = {"role": "user", "content": "hi"}
ASK = Ask(turns=(said("user", "hi"),))
BAD_JSON = ("invalid_request_body", "invalid JSON request body")
NO_TOOLS = ("unsupported_feature", "tools and tool_choice are not supported by this server")
NO_LOGPROBS = ("unsupported_feature", "logprobs/top_logprobs are not supported by this server")
NO_MESSAGES = ("invalid_messages", "`messages` must not be empty")
NO_IMAGES = ("unsupported_feature", "image input requires a vision-capable model")
NO_TOKENS = ("invalid_max_tokens", "max_tokens must be at least 1")
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def parse(body: bytes | None = None, **fields: Any) -> Ask:
    return ChatDialect().parse(json.dumps({"messages": [HI], **fields}).encode() if body is None else body)


def refusal(body: bytes | None = None, **fields: Any) -> tuple[str, str]:
    with pytest.raises(BadRequest) as refused:
        parse(body, **fields)
    assert (refused.value.status, refused.value.kind) == (400, "invalid_request_error")
    assert (refused.value.param, refused.value.hint) == (None, None)
    return refused.value.code, refused.value.message


def content(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


# What it takes.


def test_every_field_arrives() -> None:
    ask = parse(
        model="m", temperature=1, top_p=0.5, top_k=40, repetition_penalty=1.2, seed=7, max_tokens=8,
        max_completion_tokens=8, reasoning_budget=3, stream=True, presence_penalty=2, user="x", stream_options={},
    )  # fmt: skip
    assert ask == Ask(
        turns=(said("user", "hi"),), model="m", sampling=SamplingChoice(1.0, 40, 0.5, None, 1.2, seed=7), max_tokens=8,
        reasoning_budget=3, stream=True,
    )  # fmt: skip


def test_a_plain_string_and_parts_are_one_text_in_order() -> None:
    """message_content_plain_string_to_chat_message, message_content_parts_concatenate_in_order"""
    assert parse().turns == (said("user", "hi"),)
    assert parse(**content(text("a"), text("b"))).turns == (said("user", "ab"),)
    assert parse(**content()).turns == (said("user", ""),)
    spoken = [{"role": role, "content": role[0], "name": "n"} for role in ("system", "assistant", "user")]
    assert parse(messages=spoken).turns == (said("system", "s"), said("assistant", "a"), said("user", "u"))


def test_max_completion_tokens_stands_in_for_max_tokens() -> None:
    """build_cfg_aliases_max_completion_tokens_when_max_tokens_absent"""
    assert parse(max_completion_tokens=42).max_tokens == 42
    assert parse(max_tokens=None, max_completion_tokens=42).max_tokens == 42


def test_any_model_is_taken() -> None:
    """cm_lattice_serve_model_mismatch_accepted_expected_deviation"""
    assert [parse(model=model).model for model in ("some-other-model", "", None)] == ["some-other-model", "", None]


@pytest.mark.parametrize(
    "fields",
    [
        {name: None}
        for name in (
            "model", "temperature", "top_p", "top_k", "max_tokens", "seed", "stream", "repetition_penalty", "stop", "n",
            "reasoning_budget", "max_completion_tokens", "tools", "tool_choice", "response_format", "logprobs",
            "top_logprobs",
        )
    ]
    + [{"n": 0}, {"n": 1}, {"logprobs": False}, {"response_format": {"type": "text", "x": 1}}]
    + [{"response_format": ["text"]}, {"stream": False}, {"messages": [["user", "hi"]]}]
    + [{"messages": [{"role": "user", "content": [["text", "hi"]]}]}, {"functions": [{}]}, {"min_p": "x"}],
    ids=str,
)  # fmt: skip
def test_null_is_absent_and_what_it_does_not_know_it_passes_over(fields: dict[str, Any]) -> None:
    assert parse(**fields) == ASK


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ({"temperature": 2.5}, {"temperature": 2.5}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": -1}, {"temperature": 0.0}),
        ({"temperature": 1e39}, {"temperature": 0.0}),
        ({"top_p": 0}, {"top_p": 0.0}),
        ({"top_p": 1.5}, {"top_p": 1.0}),
        ({"top_k": 0}, {"top_k": 0}),
        ({"repetition_penalty": 0}, {"repetition_penalty": 1.0}),
        ({"seed": 2**64 - 1}, {"seed": 2**64 - 1}),
    ],
    ids=str,
)
def test_sampling_is_not_range_checked(named: dict[str, Any], meant: dict[str, Any]) -> None:
    """Out of range it was greedy, whole or off; none of it reaches the engine as a number it cannot use."""
    assert parse(**named).sampling == SamplingChoice(**meant)


# What it refuses.


def test_roles_that_are_none_and_roles_it_lacks() -> None:
    """message_role_unknown_rejected, message_role_tool_and_developer_rejected_as_unsupported_feature"""
    told = "unsupported role 'moderator'; must be 'system', 'user', or 'assistant'"
    assert refusal(messages=[{"role": "moderator", "content": "hi"}]) == ("invalid_role", told)
    assert refusal(messages=[{"role": "", "content": "hi"}])[0] == "invalid_role"
    for role in ("tool", "developer"):
        told = f"role '{role}' is not supported by this server"
        assert refusal(messages=[HI, {"role": role, "content": "hi"}]) == ("unsupported_feature", told)


def test_parts_that_are_no_text() -> None:
    """message_content_image_url_rejected, message_content_unknown_part_rejected"""
    assert refusal(**content(IMAGE)) == NO_IMAGES
    told = "unsupported content part type '{}'; only 'text' parts are accepted"
    assert refusal(**content({"type": "file"}, IMAGE)) == ("unsupported_feature", told.format("file"))
    assert refusal(**content({"text": "hi"})) == ("unsupported_feature", told.format("<missing>"))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tools": []}, NO_TOOLS),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, NO_TOOLS),
        ({"tool_choice": "auto"}, NO_TOOLS),
        ({"n": 2}, ("unsupported_feature", "n > 1 is not supported")),
        (
            {"response_format": {"type": "json_object"}},
            ("unsupported_feature", "response_format.type 'json_object' is not supported; use 'text'"),
        ),
        ({"logprobs": True}, NO_LOGPROBS),
        ({"top_logprobs": 0}, NO_LOGPROBS),
        ({"stop": "\n"}, ("unsupported_feature", "stop is not supported by this server")),
        ({"stop": []}, ("unsupported_feature", "stop is not supported by this server")),
        (
            {"max_tokens": 10, "max_completion_tokens": 20},
            ("invalid_request", "max_tokens (10) and max_completion_tokens (20) differ; supply only one"),
        ),
        ({"messages": []}, NO_MESSAGES),
        ({"max_tokens": 0}, NO_TOKENS),
        ({"max_completion_tokens": 0}, NO_TOKENS),
        ({"max_tokens": 0, "max_completion_tokens": 0}, NO_TOKENS),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_it_cannot_do_is_refused_by_name(fields: dict[str, Any], told: tuple[str, str]) -> None:
    """chat_completions_{tools,tool_choice,n_greater_than_one,json_response_format,logprobs,stop,...}_400"""
    assert refusal(**fields) == told


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": None}, {"messages": {}}, {"messages": ["hi"]}, {"messages": [{"content": "hi"}]},
        {"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": None, "content": "hi"}]}, {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": text("hi")}]}, content("hi"), content({"type": "text"}),
        content({"type": 1}), content({"type": "image_url"}), content({"type": "image_url", "image_url": "x"}),
        content({"type": "image_url", "image_url": {}}), content({"type": "file", "text": 1}), content([]),
        content(["text", "a", None, 1]), content({"type": "x", "image_url": {"url": "u", "detail": 1}}),
        {"max_tokens": -1}, {"max_tokens": 1.0}, {"max_tokens": "8"}, {"max_tokens": 2**64}, {"top_k": -1},
        {"seed": -1}, {"seed": 0.5}, {"n": -1}, {"stream": 1}, {"stream": "true"}, {"temperature": "hot"},
        {"temperature": True}, {"model": 5}, {"logprobs": 1}, {"top_logprobs": -1}, {"response_format": {}},
        {"response_format": "text"}, {"reasoning_budget": -5}, {"messages": [["user"]]},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_types_are_no_request(fields: dict[str, Any]) -> None:
    assert refusal(**fields) == BAD_JSON


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b'"hi"', b"5", b'{"messages":[{"role":"user","content":"hi"', b'{"messages":[]} x',
        b'{"messages":[],"messages":[]}', b'{"model":"a","model":null,"messages":[]}', b"\xef\xbb\xbf{}",
        b'{"messages":[{"role":"user","role":"user","content":"hi"}]}', b'{"model":"\xff"}', b'{"temperature":NaN}',
        b'{"messages":[{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}]}', b'{"temperature":1e999}',
        b'{"messages":[{"role":"user","content":"\\ud800"}]}', b"{'messages':[]}", b'{"n":-0}', b'{"tools":1e999}',
        b'{"tools":' + b"[" * 127 + b"]" * 127 + b"}", b'{"messages":[],}',
    ],
    ids=lambda body: repr(body)[:60],
)  # fmt: skip
def test_what_serde_cannot_read_is_no_request(body: bytes) -> None:
    assert refusal(body) == BAD_JSON


def test_an_empty_body_of_either_form_has_no_messages() -> None:
    assert refusal(b"{}") == refusal(b" [] ") == refusal(b'["m"]') == NO_MESSAGES
    assert parse(b'["m",[["user","hi"]]]') == Ask(turns=(said("user", "hi"),), model="m")


# The order of checks: of two faults the earlier check is told.

LAYERS: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"messages": [{"role": "x", "content": [text("a")] * 65}]},
     ("content_part_limit_exceeded", "messages[0].content has too many parts; maximum is 64")),
    ({"seed": -1}, BAD_JSON),
    ({"tools": []}, NO_TOOLS),
    ({"n": 2}, ("unsupported_feature", "n > 1 is not supported")),
    ({"response_format": {"type": "x"}}, ("unsupported_feature",
                                          "response_format.type 'x' is not supported; use 'text'")),
    ({"top_logprobs": 1}, NO_LOGPROBS),
    ({"stop": ["x"]}, ("unsupported_feature", "stop is not supported by this server")),
    ({"max_tokens": 0, "max_completion_tokens": 1},
     ("invalid_request", "max_tokens (0) and max_completion_tokens (1) differ; supply only one")),
    ({"messages": []}, NO_MESSAGES),
    ({"messages": [{"role": "tool", "content": [IMAGE]}, {"role": "x", "content": ""}]},
     ("unsupported_feature", "role 'tool' is not supported by this server")),
    ({"messages": [{"role": "user", "content": [IMAGE]}, {"role": "x", "content": ""}]}, NO_IMAGES),
    ({"max_tokens": 0}, NO_TOKENS),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(LAYERS)))
def test_the_earlier_check_is_told(at: int) -> None:
    for later in range(at, len(LAYERS)):
        assert refusal(**{**LAYERS[later][0], **LAYERS[at][0]}) == LAYERS[at][1]
