"""langchain-openai and litellm, from their packages, on a real socket: what agents are built with.

Thread: any
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from typing import Any

import httpx2
import pydantic
import pytest

from tests.serve.stage import LIMIT_S, Served, served

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network for prices, at import
os.environ["LANGSMITH_TRACING"] = "false"

pytestmark = [
    pytest.mark.wire,
    pytest.mark.filterwarnings("ignore"),  # theirs are their own affair
]

PERSON = '{"name": "Ann", "age": 7}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
REPLIES = [
    {"when": "person", "tokens": [*PERSON]},
    {"when": "weather", "tokens": [*CALL]},
    {"when": "rain", "tokens": ["It rains."]},
    {"when": "think", "tokens": ["<think>", "hm", "</think>", "42"]},
    {"tokens": ["hello", " ", "world"]},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Person(pydantic.BaseModel):
    """Somebody."""

    name: str
    age: int


@pytest.fixture(scope="module", autouse=True)
def loops_are_closed() -> Iterator[None]:
    """litellm leaves event loops behind; a warning of one would be an error of whatever test comes later."""
    yield
    for one in gc.get_objects():
        if issubclass(type(one), asyncio.BaseEventLoop) and not one.is_running():
            one.close()


@pytest.fixture(scope="module")
def house() -> Iterator[Served]:
    with served(REPLIES, think=["<think>", "</think>"], tool_parser="json") as one:
        yield one


# langchain-openai


def asking(url: str, http_client: httpx2.Client) -> dict[str, Any]:
    """What its models are made with. Theirs of HTTP is kept for ever where none is given."""
    key = pydantic.SecretStr("none")
    return {"model": "echo", "base_url": f"{url}/v1", "api_key": key, "max_retries": 0, "http_client": http_client}


@pytest.fixture
def langchain(house: Served) -> Iterator[Any]:
    from langchain_openai import ChatOpenAI

    with httpx2.Client(timeout=LIMIT_S) as http_client:
        yield ChatOpenAI(**asking(house.url, http_client))


def test_langchain_invokes_and_streams(langchain: Any) -> None:
    """Reports 11 and 12: its chunks are added up, usage included."""
    answer = langchain.invoke("hi")
    assert (answer.content, answer.usage_metadata["output_tokens"]) == ("hello world", 3)
    assert answer.response_metadata["finish_reason"] == "stop"
    chunks = list(langchain.stream("hi", stream_usage=True))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == "hello world"
    assert whole.usage_metadata == answer.usage_metadata


def test_langchain_calls_tools_and_goes_on(langchain: Any) -> None:
    """Reports 30, 33, 34, 45 and 48."""
    from langchain_core.messages import HumanMessage, ToolMessage

    bound = langchain.bind_tools([TOOL])
    asked = HumanMessage("weather")
    answer = bound.invoke([asked])
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Oslo"})
    whole = None
    for chunk in bound.stream([asked]):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert [(one["name"], one["args"]) for one in whole.tool_calls] == [("get_weather", {"city": "Oslo"})]
    history = [asked, answer, ToolMessage("rain", tool_call_id=call["id"]), HumanMessage("rain?")]
    assert bound.invoke(history).content == "It rains."


@pytest.mark.parametrize("choice", ["any", "get_weather", "auto", "none"])
def test_langchain_chooses_tools(langchain: Any, choice: str) -> None:
    """Report 42: `any` is its word for `required`."""
    answer = langchain.bind_tools([TOOL], tool_choice=choice).invoke("weather")
    assert len(answer.tool_calls) == (0 if choice == "none" else 1)


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_langchain_structures_its_output(method: Any) -> None:
    """Report 63, by each of its three ways."""
    from langchain_openai import ChatOpenAI

    spelled = '<tool_call>\n{"name": "Person", "arguments": {"name": "Ann", "age": 7}}\n</tool_call>'
    reply = {"tokens": [*(spelled if method == "function_calling" else PERSON)]}
    with served([reply], tool_parser="json") as other, httpx2.Client(timeout=LIMIT_S) as http_client:
        model = ChatOpenAI(**asking(other.url, http_client))
        assert model.with_structured_output(Person, method=method).invoke("JSON, please") == Person(name="Ann", age=7)


def test_langchain_completes_texts(house: Served) -> None:
    """Report 91: it sends several prompts in one request."""
    from langchain_openai import OpenAI

    with httpx2.Client(timeout=LIMIT_S) as http_client:
        told = OpenAI(**asking(house.url, http_client)).generate(["hi", "rain"])
    assert [one[0].text for one in told.generations] == ["hello world", "It rains."]


# litellm


@pytest.fixture
def litellm(house: Served) -> Iterator[Any]:
    import litellm

    litellm.telemetry = False
    with house.openai() as client:

        def complete(content: str, **fields: Any) -> Any:
            messages = [{"role": "user", "content": content}]
            return litellm.completion(model="openai/echo", messages=messages, client=client, timeout=LIMIT_S, **fields)

        yield complete


def test_litellm_completes_and_streams(litellm: Any) -> None:
    """Report 12: it ties chunks together by their id."""
    answer = litellm("hi")
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("hello world", "stop")
    chunks = list(litellm("hi", stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "hello world"
    assert len({chunk.id for chunk in chunks}) == 1
    assert [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)] == [3]


def test_litellm_keeps_thoughts_apart(litellm: Any) -> None:
    """Report 57."""
    message = litellm("think").choices[0].message
    assert (message.content, message.reasoning_content) == ("42", "hm")
    deltas = [chunk.choices[0].delta for chunk in litellm("think", stream=True)]
    assert "".join(getattr(one, "reasoning_content", None) or "" for one in deltas) == "hm"
    assert "".join(one.content or "" for one in deltas) == "42"


def test_litellm_calls_tools_in_both_modes(litellm: Any) -> None:
    """Reports 30 and 33."""
    import litellm as library

    answer = litellm("weather", tools=[TOOL])
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Oslo"}')
    assert answer.choices[0].finish_reason == "tool_calls"
    rebuilt = library.stream_chunk_builder(list(litellm("weather", tools=[TOOL], stream=True)))
    (call,) = rebuilt.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Oslo"}')


def test_litellm_asks_for_a_schema(litellm: Any) -> None:
    """Report 63."""
    answer = litellm("person", response_format=Person)
    assert Person.model_validate_json(answer.choices[0].message.content) == Person(name="Ann", age=7)
