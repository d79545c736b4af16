"""The real OpenAI client on a real socket: sync and async, stream helpers, parsing into models, tools, every field.

Thread: any
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from openai.lib.streaming.chat import ContentDoneEvent, FunctionToolCallArgumentsDoneEvent
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from tests.serve.stage import LIMIT_S, Served, served

pytestmark = pytest.mark.wire

PERSON = '{"name": "Ann", "age": 7, "tags": ["a", "é"]}'
CALL = '<tool_call>\n{"name": "GetWeather", "arguments": {"city": "Oslo", "unit": "C"}}\n</tool_call>'
REPLIES = [
    {"when": "person", "tokens": [*PERSON]},
    {"when": "weather", "tokens": ["Let me see. ", *CALL]},
    {"when": "rain", "tokens": ["It rains in Oslo."]},
    {"when": "think", "tokens": ["<think>", "hm", "</think>", "\n\n", "42"]},
    {"when": "fail", "tokens": ["so ", "far"], "raise_at": 1},
    {"when": "forever", "tokens": ["x"], "then": "repeat"},
    {"tokens": ["hello", " ", "world"]},
]


class Person(pydantic.BaseModel):
    name: str
    age: int
    tags: list[str]


class GetWeather(pydantic.BaseModel):
    """The weather of a city."""

    city: str
    unit: typing.Literal["C", "F"]


@pytest.fixture(scope="module")
def house() -> Iterator[Served]:
    with served(REPLIES, think=["<think>", "</think>"], tool_parser="json") as one:
        yield one


@pytest.fixture
def client(house: Served) -> Iterator[openai.OpenAI]:
    with house.openai() as one:
        yield one


def asked(content: str) -> Any:
    return [{"role": "user", "content": content}]


def test_a_model_is_parsed_out_of_a_reply(client: openai.OpenAI) -> None:
    """Report 63: `parse` sends a strict schema, and what comes back fits it."""
    for parse in (client.chat.completions.parse, client.beta.chat.completions.parse):
        parsed = parse(model="echo", messages=asked("person"), response_format=Person)
        assert parsed.choices[0].message.parsed == Person(name="Ann", age=7, tags=["a", "é"])


def test_a_stream_is_parsed_as_it_comes(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="echo", messages=asked("person"), response_format=Person) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == Person(name="Ann", age=7, tags=["a", "é"])
    assert kinds.count("content.delta") > 3 and "content.done" in kinds


def test_calls_are_parsed_into_models(client: openai.OpenAI) -> None:
    """Reports 30 to 34, with the helper that makes a tool of a pydantic model."""
    tools = [openai.pydantic_function_tool(GetWeather)]
    parsed = client.chat.completions.parse(model="echo", messages=asked("weather"), tools=tools)
    (choice,) = parsed.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see. ")
    (call,) = choice.message.tool_calls or []
    assert call.function.parsed_arguments == GetWeather(city="Oslo", unit="C")


def test_calls_stream_through_the_helper(client: openai.OpenAI) -> None:
    tools = [openai.pydantic_function_tool(GetWeather)]
    with client.chat.completions.stream(model="echo", messages=asked("weather"), tools=tools) as stream:
        events = list(stream)
    (done,) = [event for event in events if isinstance(event, FunctionToolCallArgumentsDoneEvent)]
    assert (done.name, done.index, done.parsed_arguments) == ("GetWeather", 0, GetWeather(city="Oslo", unit="C"))
    (said,) = [event for event in events if isinstance(event, ContentDoneEvent)]
    assert said.content == "Let me see. "
    assert sum(event.type == "tool_calls.function.arguments.delta" for event in events) > 3


def test_a_conversation_goes_on_after_a_call(client: openai.OpenAI) -> None:
    """Reports 45 and 48: the SDK's own message objects are sent back as they came."""
    tools = [openai.pydantic_function_tool(GetWeather)]
    first = client.chat.completions.create(model="echo", messages=asked("weather"), tools=tools).choices[0].message
    (call,) = first.tool_calls or []
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    history: Any = [*asked("weather"), first, result, *asked("rain?")]
    again = client.chat.completions.create(model="echo", messages=history, tools=tools)
    assert again.choices[0].message.content == "It rains in Oslo."


def test_thoughts_are_where_clients_look_for_them(client: openai.OpenAI) -> None:
    """Report 57: apart, in order, and never both in one delta."""
    message = client.chat.completions.create(model="echo", messages=asked("think")).choices[0].message
    extra = message.model_extra or {}
    assert (message.content, extra["reasoning_content"], extra["reasoning"]) == ("42", "hm", "hm")
    stream = client.chat.completions.create(model="echo", messages=asked("think"), stream=True)
    deltas = [chunk.choices[0].delta for chunk in stream]
    kinds = ["answer" if one.content else "thought" for one in deltas if one.content or (one.model_extra or {})]
    assert kinds == sorted(kinds, reverse=True)
    assert all(not (one.content and (one.model_extra or {})) for one in deltas)


def test_log_probabilities_are_one_for_each_token(client: openai.OpenAI) -> None:
    """Report 92."""
    answer = client.chat.completions.create(model="echo", messages=asked("hi"), logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert "".join(one.token for one in logprobs.content) == answer.choices[0].message.content
    assert all(bytes(one.bytes or []) == one.token.encode() for one in logprobs.content)
    legacy = client.completions.create(model="echo", prompt="hi", logprobs=1, echo=True)
    assert legacy.choices[0].logprobs is not None
    assert "".join(legacy.choices[0].logprobs.tokens or []) == "hi" + "hello world"


def test_a_failure_is_the_clients_own_exception(client: openai.OpenAI) -> None:
    """Report 15."""
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="echo", messages=asked("fail"))
    stream = client.chat.completions.create(model="echo", messages=asked("fail"), stream=True)
    with pytest.raises(openai.APIError, match="generation failed"):
        list(stream)


def test_a_reply_that_was_cut_is_told_by_the_parser(client: openai.OpenAI) -> None:
    """Report 10."""
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model="echo", messages=asked("person"), response_format=Person, max_completion_tokens=3
        )


def test_twenty_async_clients_at_once(house: Served) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        if number % 2:
            stream = await client.chat.completions.create(model="echo", messages=asked("hi"), stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        answer = await client.chat.completions.create(model="echo", messages=asked("hi"))
        return answer.choices[0].message.content or ""

    async def all_of_them() -> list[str]:
        url = f"{house.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=8, timeout=LIMIT_S) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(20)))

    assert asyncio.run(all_of_them()) == ["hello world"] * 20


# Every optional field at once, from the type hints of the installed client, so that none is forgotten.

NEEDED = {"messages", "model", "prompt", "stream"}
VALUES: dict[str, Any] = {
    "audio": None,
    "best_of": 1,
    "echo": False,
    "frequency_penalty": 0.5,
    "function_call": "none",
    "functions": [],
    "logit_bias": {"5": 1},
    "logprobs": True,
    "max_completion_tokens": 9,
    "max_tokens": 9,
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "moderation": None,
    "n": 2,
    "parallel_tool_calls": True,
    "prediction": None,
    "presence_penalty": 0.5,
    "prompt_cache_key": "k",
    "prompt_cache_options": None,
    "prompt_cache_retention": "in-memory",
    "reasoning_effort": "low",
    "response_format": {"type": "text"},
    "safety_identifier": "s",
    "seed": 5,
    "service_tier": "auto",
    "stop": ["zz"],
    "store": True,
    "stream_options": {"include_usage": True, "include_obfuscation": False},
    "suffix": None,
    "temperature": 0.5,
    "tool_choice": "auto",
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}],
    "top_logprobs": 2,
    "top_p": 0.5,
    "user": "u",
    "verbosity": "low",
    "web_search_options": None,
}


def optional_fields(shape: type) -> set[str]:
    return set(typing.get_type_hints(shape)) - NEEDED


@pytest.mark.parametrize("stream", [False, True])
def test_every_field_of_a_chat_at_once(client: openai.OpenAI, stream: bool) -> None:
    """Report 147. A field that the client gained, and that we never thought of, fails here."""
    names = optional_fields(chat_create_params.CompletionCreateParamsBase)
    assert names >= {"tools", "response_format", "reasoning_effort", "verbosity"}
    fields = {name: VALUES[name] for name in names if stream or name != "stream_options"}
    answer: Any = client.chat.completions.with_raw_response.create(
        model="echo", messages=asked("hi"), stream=stream, extra_body=fields
    )
    assert answer.status_code == 200
    assert "x-ignored-fields" not in answer.headers
    if stream:
        chunks = list(answer.parse())
        assert chunks[-1].usage.completion_tokens == 6
    else:
        assert [one.message.content for one in answer.parse().choices] == ["hello world"] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_every_field_of_a_completion_at_once(client: openai.OpenAI, stream: bool) -> None:
    names = optional_fields(completion_create_params.CompletionCreateParamsBase)
    assert names >= {"echo", "suffix", "best_of", "logprobs"}
    fields = {name: VALUES[name] for name in names if stream or name != "stream_options"}
    fields |= {"logprobs": 2, "echo": True}
    answer: Any = client.completions.with_raw_response.create(
        model="echo", prompt=["hi", "ho"], stream=stream, extra_body=fields
    )
    assert answer.status_code == 200
    assert "x-ignored-fields" not in answer.headers
    if not stream:
        assert [one.text for one in answer.parse().choices] == ["hihello world"] * 2 + ["hohello world"] * 2


def test_each_field_may_be_null(client: openai.OpenAI) -> None:
    """`null` means absent, in every field there is."""
    names = optional_fields(chat_create_params.CompletionCreateParamsBase)
    answer = client.chat.completions.create(model="echo", messages=asked("hi"), extra_body=dict.fromkeys(names))
    assert answer.choices[0].message.content == "hello world"
    names = optional_fields(completion_create_params.CompletionCreateParamsBase)
    text = client.completions.create(model="echo", prompt="hi", extra_body=dict.fromkeys(names))
    assert text.choices[0].text == "hello world"
