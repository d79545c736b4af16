"""A chat body -> an Ask, or a refusal that names the place.

Thread: any
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lattice_cli.conversation import TextPart, ToolCall, Turn, said
from lattice_cli.errors import BadRequest
from lattice_cli.job import SamplingChoice
from lattice_cli.prompt.template import RenderOptions
from lattice_cli.serve.wire import Ask
from lattice_cli.serve.wire.chat import KNOWN, ChatDialect
from lattice_cli.serve.wire.ending import Ending
from lattice_cli.serve.wire.fields import HARMLESS, NEUTRAL, header_names

pytestmark = pytest.mark.pure

HI = [{"role": "user", "content": "hi"}]
ASK = Ask(turns=(said("user", "hi"),))


def parse(**fields: Any) -> Ask:
    return ChatDialect().parse(json.dumps({"messages": HI, **fields}).encode())


def refusal(**fields: Any) -> tuple[int, str, str | None]:
    with pytest.raises(BadRequest) as refused:
        parse(**fields)
    return refused.value.status, refused.value.code, refused.value.param


def test_every_field_arrives() -> None:
    ask = parse(
        model="m",
        temperature=1,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=-2,
        frequency_penalty=2,
        seed=7,
        max_tokens=8,
        stop=["a", "b"],
        n=2,
        thinking_token_budget=5,
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        logit_bias={"7": 100, "3": -100.0},
        stop_token_ids=[5, 4, 5],
        include_stop_str_in_output=True,
        ignore_eos=True,
        min_tokens=2,
        logprobs=True,
        top_logprobs=20,
        chat_template_kwargs={"a": 1, "b": None},
        enable_thinking=True,
        reasoning_effort="low",
        add_generation_prompt=False,
    )
    assert ask == Ask(
        turns=(said("user", "hi"),),
        model="m",
        sampling=SamplingChoice(1.0, 40, 0.5, 0.1, 1.2, -2.0, 2.0, 7, ((3, -100.0), (7, 100.0))),
        max_tokens=8,
        reasoning_budget=5,
        ending=Ending(("a", "b"), (5, 4), ignore_end=True, min_tokens=2, keep_stop=True),
        choices=2,
        logprobs=20,
        rendering=RenderOptions(
            add_generation_prompt=False, template_kwargs={"a": 1}, enable_thinking=True, reasoning_effort="low"
        ),
        stream=True,
        include_usage=True,
    )


def test_null_means_absent_everywhere(subtests: pytest.Subtests) -> None:
    """mlx_lm.server answers 400 to `temperature: null`; OpenAI's own types allow it."""
    for name in sorted({*HARMLESS, *NEUTRAL, "model", "temperature", "max_tokens", "stop", "stream"}):
        with subtests.test(name):
            assert parse(**{name: None}) == ASK


def test_minus_one_keeps_all_tokens_as_vllm_and_llama_server_have_it() -> None:
    assert parse(top_k=-1) == parse(top_k=0)


@pytest.mark.parametrize("name", ["stream_options", "seed", "top_k", "top_p", "n", "max_completion_tokens", "min_p"])
def test_null_means_absent_for_the_rest_too(name: str) -> None:
    assert parse(**{name: None}) == ASK


def test_stream_options_may_be_empty() -> None:
    """mlx_lm.server ended such a stream without `[DONE]`."""
    assert parse(stream=True, stream_options={}) == Ask(turns=ASK.turns, stream=True)
    assert parse(stream=True, stream_options={"include_usage": None}) == Ask(turns=ASK.turns, stream=True)


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({"max_tokens": 8}, 8),
        ({"max_completion_tokens": 8}, 8),
        ({"max_new_tokens": 8}, 8),
        ({"n_predict": 8}, 8),
        ({"num_predict": 8}, 8),
        ({"num_predict": -1}, None),
        ({"n_predict": -1, "max_tokens": 3}, 3),
        ({"max_tokens": 8, "max_completion_tokens": 8}, 8),
        ({"max_tokens": None, "max_completion_tokens": 4}, 4),
        ({"max_tokens": 8.0}, 8),
    ],
)
def test_a_limit_is_heard_under_each_of_its_names(fields: dict[str, Any], max_tokens: int | None) -> None:
    """Report 89: `max_completion_tokens` was ignored, so generation ran on."""
    assert parse(**fields) == Ask(turns=ASK.turns, max_tokens=max_tokens)


@pytest.mark.parametrize(("seed", "read"), [(0, 0), (-1, 2**64 - 1), (2**63, 2**63), (2**64 - 1, 2**64 - 1)])
def test_a_seed_is_any_integer_of_64_bits(seed: int, read: int) -> None:
    assert parse(seed=seed).sampling.seed == read


@pytest.mark.parametrize(
    ("stop", "read"), [("x", ("x",)), (None, ()), ([], ()), (["x"] * 16, ("x",) * 16), ("\0", ("\0",))]
)
def test_stop_texts(stop: Any, read: tuple[str, ...]) -> None:
    """Report 28: null and an empty list are none; an empty text, which would match everywhere, is refused below."""
    assert parse(stop=stop).ending.stop == read


@pytest.mark.parametrize(("model", "read"), [("", None), ("default", None), ("lattice", None), ("a/b", "a/b")])
def test_names_of_the_served_model(model: str, read: str | None) -> None:
    """Report 120: one documented rule."""
    assert parse(model=model).model == read


def test_parts_may_be_many_and_long() -> None:
    parts = [{"type": "text", "text": "x" * 65_537}, *[{"type": "text", "text": "y"}] * 1023]
    (turn,) = parse(messages=[{"role": "user", "content": parts}]).turns
    assert len(turn.text) == 65_537 + 1023


def test_a_repeat_penalty_is_the_repetition_penalty() -> None:
    assert parse(repeat_penalty=1.1).sampling.repetition_penalty == 1.1


REFUSED: list[tuple[dict[str, Any], tuple[int, str, str | None]]] = [
    # What belongs to a value.
    ({"temperature": 2.5}, (400, "invalid_temperature", "temperature")),
    ({"temperature": -0.1}, (400, "invalid_temperature", "temperature")),
    ({"temperature": "hot"}, (400, "invalid_temperature", "temperature")),
    ({"temperature": True}, (400, "invalid_temperature", "temperature")),
    ({"top_p": 0}, (400, "invalid_top_p", "top_p")),
    ({"top_p": 1.5}, (400, "invalid_top_p", "top_p")),
    ({"top_k": -2}, (400, "invalid_request", "top_k")),
    ({"top_k": 1.5}, (400, "invalid_request", "top_k")),
    ({"min_p": 1.1}, (400, "invalid_request", "min_p")),
    ({"repetition_penalty": 0}, (400, "invalid_request", "repetition_penalty")),
    ({"presence_penalty": 2.1}, (400, "invalid_request", "presence_penalty")),
    ({"frequency_penalty": -2.1}, (400, "invalid_request", "frequency_penalty")),
    ({"seed": 2**64}, (400, "invalid_request", "seed")),
    ({"seed": 10**300}, (400, "invalid_request", "seed")),
    ({"seed": "7"}, (400, "invalid_request", "seed")),
    ({"model": 42}, (400, "invalid_request", "model")),
    ({"max_tokens": 0}, (400, "invalid_max_tokens", "max_tokens")),
    ({"max_tokens": -1}, (400, "invalid_max_tokens", "max_tokens")),
    ({"max_tokens": "7"}, (400, "invalid_max_tokens", "max_tokens")),
    ({"max_tokens": True}, (400, "invalid_max_tokens", "max_tokens")),
    ({"max_completion_tokens": 0}, (400, "invalid_max_tokens", "max_completion_tokens")),
    ({"max_tokens": 10, "max_completion_tokens": 20}, (400, "invalid_request", "max_completion_tokens")),
    ({"repetition_penalty": 1.1, "repeat_penalty": 1.2}, (400, "invalid_request", "repetition_penalty")),
    ({"stop": ""}, (400, "invalid_stop", "stop")),
    ({"stop": ["a", ""]}, (400, "invalid_stop", "stop[1]")),
    ({"stop": [1, 2]}, (400, "invalid_stop", "stop[0]")),
    ({"stop": {}}, (400, "invalid_stop", "stop")),
    ({"stop": ["x"] * 17}, (400, "invalid_stop", "stop")),
    ({"reasoning_budget": 1, "thinking_token_budget": 2}, (400, "invalid_request", "reasoning_budget")),
    ({"reasoning_budget": -1}, (400, "invalid_request", "reasoning_budget")),
    ({"reasoning_budget": "low"}, (400, "invalid_request", "reasoning_budget")),
    (
        {"messages": [*HI, {"role": "user", "content": [{"type": "text", "text": "x"}] * 1025}]},
        (400, "content_part_limit_exceeded", "messages[1].content"),
    ),
    ({"n": 0}, (400, "invalid_request", "n")),
    ({"n": 17}, (400, "invalid_request", "n")),
    ({"stream": 1}, (400, "invalid_request", "stream")),
    ({"stream_options": {"include_usage": True}}, (400, "invalid_request", "stream_options")),
    (
        {"stream": True, "stream_options": {"include_usage": 1}},
        (400, "invalid_request", "stream_options.include_usage"),
    ),
    # What belongs to the messages (report 82).
    ({"messages": []}, (400, "invalid_messages", "messages")),
    ({"messages": None}, (400, "invalid_messages", "messages")),
    ({"messages": {}}, (400, "invalid_messages", "messages")),
    ({"messages": "hi"}, (400, "invalid_messages", "messages")),
    ({"messages": [None]}, (400, "invalid_request", "messages[0]")),
    ({"messages": [{"content": "x"}]}, (400, "invalid_request", "messages[0].role")),
    ({"messages": [{"role": "user"}]}, (400, "invalid_messages", "messages[0].content")),
    ({"messages": [{"role": "user", "content": None}]}, (400, "invalid_messages", "messages[0].content")),
    ({"messages": [{"role": "banana", "content": "x"}]}, (400, "invalid_role", "messages[0].role")),
    ({"messages": [{"role": 1, "content": "x"}]}, (400, "invalid_request", "messages[0].role")),
    ({"messages": [*HI, {"role": "user", "content": 7}]}, (400, "invalid_request", "messages[1].content")),
    ({"messages": [{"role": "function", "content": "x"}]}, (400, "unsupported_feature", "messages[0].role")),
    ({"messages": [{"role": "tool", "tool_call_id": "1"}]}, (400, "invalid_messages", "messages[0].content")),
    *(
        ({"messages": [{"role": "assistant", "tool_calls": [call]}]}, (400, code, f"messages[0].tool_calls[0]{place}"))
        for call, code, place in (
            ({}, "invalid_request", ".function"),
            ({"function": {}}, "invalid_request", ".function.name"),
            ({"function": {"name": 5}}, "invalid_request", ".function.name"),
            ({"type": "custom", "function": {"name": "f"}}, "unsupported_feature", ".type"),
            (7, "invalid_request", ""),
        )
    ),
    (
        {"messages": [{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}]},
        (400, "invalid_messages", "messages[0].tool_calls"),
    ),
    (
        {"messages": [{"role": "assistant", "content": "x", "function_call": {"name": "f"}}]},
        (400, "unsupported_feature", "messages[0].function_call"),
    ),
    ({"messages": [*HI, {"role": "user", "content": "x", "name": 7}]}, (400, "invalid_request", "messages[1].name")),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        (400, "invalid_request", "messages[0].content[0].text"),
    ),
    (
        {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
        (400, "invalid_request", "messages[0].content[0].type"),
    ),
    ({"messages": [{"role": "user", "content": ["x"]}]}, (400, "invalid_request", "messages[0].content[0]")),
    # Report 88: an image sent to a text model was dropped, and the model invented a description.
    *(
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, part]}, *HI]},
            (400, "unsupported_feature", "messages[0].content[1].type"),
        )
        for part in (
            {"type": "image_url", "image_url": {"url": "http://192.0.2.1/x.png"}},
            {"type": "input_audio", "input_audio": {}},
            {"type": "hologram"},
        )
    ),
    # What ends a reply, and what is told of it (report 92).
    ({"logit_bias": {"x": 1}}, (400, "invalid_request", "logit_bias")),
    ({"logit_bias": {"-1": 1}}, (400, "invalid_request", "logit_bias")),
    ({"logit_bias": {"9" * 5000: 1}}, (400, "invalid_request", "logit_bias")),
    ({"logit_bias": {"1": 100.5}}, (400, "invalid_request", "logit_bias")),
    ({"logit_bias": {"1": True}}, (400, "invalid_request", "logit_bias")),
    ({"logit_bias": [1]}, (400, "invalid_request", "logit_bias")),
    ({"logit_bias": {str(token): 1 for token in range(4097)}}, (400, "invalid_request", "logit_bias")),
    ({"stop_token_ids": [-1]}, (400, "invalid_request", "stop_token_ids[0]")),
    ({"stop_token_ids": list(range(65))}, (400, "invalid_request", "stop_token_ids")),
    ({"min_tokens": -1}, (400, "invalid_request", "min_tokens")),
    ({"min_tokens": 5, "max_tokens": 4}, (400, "invalid_request", "min_tokens")),
    ({"ignore_eos": 1}, (400, "invalid_request", "ignore_eos")),
    ({"logprobs": 5}, (400, "invalid_request", "logprobs")),
    ({"logprobs": True, "top_logprobs": 21}, (400, "invalid_request", "top_logprobs")),
    ({"logprobs": True, "top_logprobs": -1}, (400, "invalid_request", "top_logprobs")),
    ({"top_logprobs": 5}, (400, "invalid_request", "top_logprobs")),
    ({"logprobs": False, "top_logprobs": 5}, (400, "invalid_request", "top_logprobs")),
    # How a chat is rendered.
    ({"reasoning_effort": "much"}, (400, "invalid_request", "reasoning_effort")),
    ({"chat_template_kwargs": []}, (400, "invalid_request", "chat_template_kwargs")),
    (
        {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
        (400, "invalid_request", "enable_thinking"),
    ),
    (
        {"continue_final_message": True, "add_generation_prompt": True},
        (400, "invalid_request", "continue_final_message"),
    ),
    # What would change the output and cannot be done (reports 91, 92, 147).
    *(
        ({name: value}, (400, "unsupported_feature", name))
        for name, value in {
            "functions": [{"name": "f"}],
            "function_call": {"name": "f"},
            "modalities": ["audio"],
            "audio": {},
            "web_search_options": {},
            "best_of": 2,
            "echo": True,
            "suffix": "x",
            "xtc_threshold": 0.9,
            "xtc_probability": 0.5,
            "dry_multiplier": 0.8,
            "mirostat": 2,
            "typical_p": 0.9,
            "num_ctx": 8192,
            "repetition_context_size": 20,
        }.items()
    ),
]


def test_what_cannot_be_is_refused_with_its_place(subtests: pytest.Subtests) -> None:
    """No field that changes the output is ignored silently (reports 82, 88, 89, 91, 92)."""
    for fields, answer in REFUSED:
        with subtests.test(json.dumps(fields)[:60]):
            assert refusal(**fields) == answer


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 3}, "`temperature` must be a number <= 2.0"),
        ({"temperature": "x"}, "`temperature` must be a number, not a string"),
        ({"max_tokens": 1.5}, "`max_tokens` must be an integer, not a number"),
        ({"stop": 3}, "`stop` must be a string or an array, not an integer"),
        ({"messages": [{}]}, "`messages[0].role` is missing"),
        ({"messages": [None]}, "`messages[0]` must be an object"),
        ({"temperature": 10**300}, "`temperature` must be a number <= 2.0"),
        ({"temperature": 10**400}, "`temperature` is out of range"),
    ],
)
def test_refusals_speak_of_json_and_not_of_python(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(**fields)
    assert refused.value.message == message


def test_a_refused_field_says_how_to_go_on() -> None:
    with pytest.raises(BadRequest) as refused:
        parse(modalities=["audio"])
    assert refused.value.sentence() == '`modalities` is not supported (hint: leave it out, or send null or ["text"])'
    with pytest.raises(BadRequest) as refused:
        parse(functions=[{"name": "f"}])
    assert refused.value.sentence() == "`functions` is not supported (hint: send `tools`)"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name, values in NEUTRAL.items() for value in values if name not in KNOWN),
        ("tools", []),
        ("tool_choice", "none"),
        ("tool_choice", "auto"),
        ("parallel_tool_calls", False),
        ("response_format", {"type": "text"}),
        ("logprobs", False),
        ("top_logprobs", 0),
        ("logit_bias", {}),
        ("grammar", ""),
        *((name, "anything") for name in HARMLESS),
        ("metadata", {"a": "b"}),
        ("store", True),
    ],
)
def test_legal_and_harmless_fields_are_accepted(name: str, value: Any) -> None:
    """Report 44: a choice of tools without tools. Report 147: `user`, `store` and their like break nothing."""
    assert parse(**{name: value}) == ASK


def test_fields_that_nobody_knows_are_named() -> None:
    many = {f"x{index:02}": 1 for index in range(30)}
    assert parse(**many).ignored == tuple(many)
    assert header_names(many) == list(many)[:20]
    odd = {"a b": 1, "é": 1, "x" * 65: 1, "a\r\nB": 1, "fine.one-2_": 1}
    assert parse(**odd).ignored == tuple(odd)
    assert header_names(odd) == ["fine.one-2_"]


def test_fields_that_nobody_knows_are_named_inside_too() -> None:
    messages = [{"role": "user", "content": "hi", "prefix": True, "name": "Ann"}, {**HI[0], "prefix": False}]
    ask = parse(messages=messages, stream=True, stream_options={"continuous": True})
    assert ask.ignored == ("messages.prefix", "stream_options.continuous")


def test_fields_that_nobody_knows_are_named_however_deep() -> None:
    """Of parts, tools and formats nobody was told; what is in a schema is the client's own."""
    schema = {"type": "object", "properties": {}, "x-own": 1}
    parts = [{"type": "text", "text": "hi", "cache_control": {}, "annotations": []}]
    function = {"name": "f", "parameters": schema, "returns": 1}
    ask = parse(
        messages=[{"role": "user", "content": parts}],
        tools=[{"type": "function", "function": function, "cache_control": {}}],
        response_format={"type": "json_schema", "json_schema": {"schema": schema, "title": ""}, "strict": True},
    )
    assert ask.ignored == (
        "messages.content.cache_control",
        "response_format.json_schema.title",
        "response_format.strict",
        "tools.function.returns",
        "tools.cache_control",
    )


@pytest.mark.parametrize(
    ("message", "turn"),
    [
        ({"role": "developer", "content": "be brief"}, said("system", "be brief")),
        ({"role": "system", "content": ""}, Turn("system", ())),
        ({"role": "user", "content": ""}, Turn("user", ())),
        ({"role": "assistant", "content": None}, Turn("assistant", ())),
        ({"role": "assistant"}, Turn("assistant", ())),
        ({"role": "assistant", "content": "x", "tool_calls": [], "refusal": None}, said("assistant", "x")),
        (
            {"role": "assistant", "content": "x", "tool_calls": None, "function_call": None, "audio": None},
            said("assistant", "x"),
        ),
        (
            {"role": "assistant", "content": "x", "reasoning_content": "hm", "reasoning": "hm"},
            replace(said("assistant", "x"), reasoning="hm"),
        ),
        ({"role": "assistant", "content": "x", "reasoning": {}}, said("assistant", "x")),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            said("assistant", "no"),
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}, "index": 0},
                    {"function": {"name": "g", "arguments": {"a": "é"}}},
                    {"function": {"name": "h"}},
                ],
            },
            Turn(
                "assistant",
                tool_calls=(ToolCall("1", "f", '{"a":1}'), ToolCall("", "g", '{"a": "é"}'), ToolCall("", "h", "{}")),
            ),
        ),
        (
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "a"}], "name": "f"},
            Turn("tool", (TextPart("a"),), name="f", tool_call_id="1"),
        ),
        ({"role": "tool", "content": "a"}, said("tool", "a")),
        (
            {"role": "user", "content": [{"type": "text", "text": "My code is 12."}, {"type": "text", "text": "?"}]},
            Turn("user", (TextPart("My code is 12."), TextPart("?"))),
        ),
        ({"role": "system", "content": [{"type": "text", "text": "a"}]}, said("system", "a")),
        ({"role": "user", "content": []}, Turn("user", ())),
    ],
)
def test_messages_become_turns(message: dict[str, Any], turn: Turn) -> None:
    """Reports 83 and 87: empty texts are legal, and every part of an array reaches the model in order. Report 113: a
    developer is a system. Reports 47, 48 and 49: arguments are a text or a value, calls need no content, null is none.
    """
    assert parse(messages=[message]).turns == (turn,)
