"""The application under each policy: what lattice_serve's own tests ask of its router, and what each does its own way.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from lattice_cli.policy import LATTICE_050, LATTICE_061, OPENAI, Policy
from lattice_cli.settings import EngineSettings
from tests.serve.stage import HANG, HELLO, PATH, PREFILL, RAISE, Stage, body, eventually, stage, with_settings

pytestmark = pytest.mark.wire

THINK = {"when": "ponder", "tokens": ["<think>", "a", "b", "c", "</think>", "d", "e", "f"], "then": "repeat"}
FIRST = {"when": "first", "tokens": ["x"], "raise_at": 0}
TELL = {"when": "tell", "tell": True, "tokens": []}
ENDLESS = {"when": "endless", "tokens": ["x"], "then": "repeat"}
REPLIES = [HANG, PREFILL, RAISE, FIRST, THINK, TELL, ENDLESS, HELLO]
SCRIPT = {"think": ["<think>", "</think>"], "chat_template": "{{ messages[-1].content }}"}
LATTICE = [LATTICE_061, LATTICE_050]


@pytest.fixture(scope="module")
def houses() -> Iterator[dict[str, Stage]]:
    with (
        stage(REPLIES, settings=with_settings(policy=OPENAI), **SCRIPT) as openai,
        stage(REPLIES, settings=with_settings(policy=LATTICE_061), **SCRIPT) as v061,
        stage(REPLIES, settings=with_settings(policy=LATTICE_050), **SCRIPT) as v050,
    ):
        yield {OPENAI.name: openai, LATTICE_061.name: v061, LATTICE_050.name: v050}


def ask(houses: dict[str, Stage], policy: Policy, said: Any = None, method: str = "POST", **options: Any) -> Any:
    """`said` may be bytes, which have no content type but the one that is named."""
    raw = {"content": said} if isinstance(said, bytes) else {} if said is None else {"json": said}
    with houses[policy.name].client() as one:
        return one.request(method, options.pop("path", PATH), **raw, **options)


def data(answer: httpx2.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def phases(answer: httpx2.Response) -> list[Any]:
    """Each chunk's delta, or its finish reason where there is one; fields beside it are checked."""
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = data(answer)
    assert done == "[DONE]"
    assert len({(one["id"], one["created"], one["model"]) for one in chunks}) == 1
    said = []
    for one in chunks:
        assert sorted(one) == ["choices", "created", "id", "model", "object"]
        (choice,) = one["choices"]
        assert sorted(choice) == ["delta", "finish_reason", "index"]
        said.append(choice["finish_reason"] if choice["delta"] == {} else choice["delta"])
        assert choice["delta"] == {} or choice["finish_reason"] is None
    return said


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


# The table that both binaries of lattice share, as lattice_serve answers it. The request is checked in process.

HI = {"role": "user", "content": "hi"}
TABLE: list[tuple[str, dict[str, Any], tuple[int, str]]] = [
    ("unknown_role", {"messages": [{"role": "moderator", "content": "be nice"}, HI]}, (400, "invalid_role")),
    ("developer", {"messages": [{"role": "developer", "content": "x"}, HI]}, (400, "unsupported_feature")),
    ("empty", {"messages": []}, (400, "invalid_messages")),
    ("zero", body(max_tokens=0), (400, "invalid_max_tokens")),
    ("conflict", body(max_tokens=10, max_completion_tokens=20), (400, "invalid_request")),
    ("tools", body(tools=[{"type": "function", "function": {"name": "f"}}]), (400, "unsupported_feature")),
    ("over_cap", body(max_tokens=999_999), (400, "context_length_exceeded")),
    ("overflow", body(max_tokens=4096, stream=True), (400, "context_length_exceeded")),
]


@pytest.mark.parametrize(("name", "said", "told"), TABLE, ids=[name for name, *_ in TABLE])
def test_061_refuses_what_the_shared_table_refuses(houses: Any, name: str, said: Any, told: tuple[int, str]) -> None:
    """CHAT_COMPLETIONS_PARITY_CASES, chat_completions_streaming_context_overflow_returns_400_before_committing_sse"""
    answer = ask(houses, LATTICE_061, {"model": "test-model", **said})
    assert code(answer) == told
    assert list(answer.json()["error"]) == ["message", "type", "code", "param"]
    assert answer.json()["error"]["param"] is None


def test_061_reads_no_content_type_and_refuses_by_length(houses: Any) -> None:
    assert ask(houses, LATTICE_061, json.dumps(body()).encode()).status_code == 200
    assert ask(houses, LATTICE_061, json.dumps(body()).encode(), headers={"content-type": "x/y"}).status_code == 200
    assert code(ask(houses, LATTICE_061, b'{"messages":[')) == (400, "invalid_request_body")
    assert code(ask(houses, LATTICE_061)) == (400, "invalid_request_body")
    limit = 1 << 20
    exact = json.dumps(body(x="")).encode()
    exact = exact.replace(b'"x": ""', b'"x": "%b"' % (b"y" * (limit - len(exact))))
    assert len(exact) == limit
    assert ask(houses, LATTICE_061, exact).status_code == 200
    assert code(ask(houses, LATTICE_061, exact + b" ")) == (413, "request_body_too_large")


def test_050_answers_bodies_it_cannot_read_in_plain_text(houses: Any) -> None:
    as_json = {"content-type": "application/json"}
    for said, headers, told in (
        (b'{"messages":[', as_json, (400, "Failed to parse the request body as JSON: messages[0]: EOF while parsing a "
                                     "list at line 1 column 13")),
        (b'{"n":1,"messages":1}', as_json, (422, "Failed to deserialize the JSON body into the target type: messages: "
                                            "invalid type: integer `1`, expected a sequence at line 1 column 19")),
        (json.dumps(body()).encode(), {}, (415, "Expected request with `Content-Type: application/json`")),
        (b" " * ((2 << 20) + 1), as_json, (413, "Failed to buffer the request body: length limit exceeded")),
    ):  # fmt: skip
        answer = ask(houses, LATTICE_050, said, headers=headers)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert (answer.status_code, answer.text) == told


@pytest.mark.parametrize("policy", LATTICE, ids=lambda policy: policy.name)
@pytest.mark.parametrize(
    "fields",
    [{}, {"temperature": 0.0}, {"temperature": 2.0}, {"temperature": 2.5}, {"top_p": 1.0}, {"top_p": 0.0},
     {"top_p": 1.5}, {"temperature": -3, "top_k": 0, "repetition_penalty": -1}],
    ids=str,
)  # fmt: skip
def test_a_plain_answer(houses: Any, policy: Policy, fields: dict[str, Any]) -> None:
    """baseline_non_streaming_200 and the boundaries of temperature and top_p"""
    answer = ask(houses, policy, body(model="test-model", **fields))
    said = answer.json()
    assert answer.status_code == 200
    assert sorted(said) == ["choices", "created", "id", "model", "object", "usage"]
    assert (said["object"], said["model"], said["id"][:9]) == ("chat.completion", "test-model", "chatcmpl-")
    message = {"role": "assistant", "content": "hello world"}
    assert said["choices"] == [{"index": 0, "message": message, "finish_reason": "stop"}]
    assert said["usage"] == {"prompt_tokens": 52, "completion_tokens": 3, "total_tokens": 55}


@pytest.mark.parametrize("policy", LATTICE, ids=lambda policy: policy.name)
def test_a_streamed_answer(houses: Any, policy: Policy) -> None:
    """baseline_streaming_200"""
    answer = ask(houses, policy, body(model="gpt-9", stream=True, stream_options={"include_usage": True}))
    assert phases(answer) == [
        {"role": "assistant"}, {"content": "hello"}, {"content": " "}, {"content": "world"}, "stop",
    ]  # fmt: skip
    assert {chunk["model"] for chunk in data(answer)[:-1]} == {"gpt-9"}
    assert {chunk["model"] for chunk in data(ask(houses, policy, body(stream=True)))[:-1]} == {"echo"}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
def test_the_end_of_an_answer_that_was_cut(houses: Any, stream: bool) -> None:
    """chat_completions_*_finish_reason_length_when_not_stopped; 0.5.0 says `stop` of everything"""

    def ends(policy: Policy) -> Any:
        answer = ask(houses, policy, body("endless", max_tokens=3, stream=stream))
        return phases(answer)[-1] if stream else answer.json()["choices"][0]["finish_reason"]

    assert (ends(LATTICE_061), ends(LATTICE_050)) == ("length", "stop")


def test_050_makes_the_best_of_a_request(houses: Any) -> None:
    nothing = ask(houses, LATTICE_050, body("endless", max_tokens=0)).json()
    assert nothing["choices"][0]["message"]["content"] == ""
    assert nothing["usage"] == {"prompt_tokens": 57, "completion_tokens": 0, "total_tokens": 57}
    assert phases(ask(houses, LATTICE_050, body(max_tokens=0, stream=True))) == [{"role": "assistant"}, "stop"]
    assert ask(houses, LATTICE_050, body("endless", max_tokens=999_999)).json()["usage"]["total_tokens"] == 4095
    lenient = {
        "messages": [{"role": "tool", "content": [{"type": "image_url"}, {"text": "hi"}]}],
        "tools": [{}],
        "n": 3,
    }
    assert ask(houses, LATTICE_050, lenient).json()["choices"][0]["message"]["content"] == "hello world"
    answer = ask(houses, LATTICE_050, body("x" * 4096, stream=True))
    assert (answer.status_code, list(answer.json()["error"])) == (400, ["message", "type"])


# What the engine is asked.


def told(houses: Any, policy: Policy, **fields: Any) -> Any:
    said = ask(houses, policy, body("tell", **fields)).json()["choices"][0]["message"]["content"]
    return json.loads(said)


@pytest.mark.parametrize("policy", LATTICE, ids=lambda policy: policy.name)
def test_the_engine_is_asked_what_the_request_says(houses: Any, policy: Policy) -> None:
    """chat_completions_non_streaming_observation_captures_real_config_and_messages; the template is not the model's"""
    asked = told(houses, policy, temperature=1.3, top_p=0.55, seed=7, max_tokens=9)
    assert asked["prompt"] == "<|im_start|>user\ntell<|im_end|>\n<|im_start|>assistant\n"
    assert asked["prompt_tokens"] == len(asked["prompt"])
    assert asked["sampling"] == {
        "temperature": 1.3, "top_k": 50, "top_p": 0.55, "min_p": 0.0, "repetition_penalty": 1.1,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": 7,
    }  # fmt: skip
    assert asked["limits"] == {"max_tokens": 9, "reasoning_tokens": None, "answer_tokens": None}
    assert (asked["stop"], asked["reasoning_apart"]) == ([], False)


@pytest.mark.parametrize("policy", LATTICE, ids=lambda policy: policy.name)
def test_what_nobody_named_is_built_in(houses: Any, policy: Policy) -> None:
    asked = told(houses, policy)
    assert (asked["limits"]["max_tokens"], asked["sampling"]["repetition_penalty"]) == (512, 1.1)
    assert (asked["sampling"]["temperature"], asked["sampling"]["top_p"]) == (0.7, 0.9)


@pytest.mark.parametrize("policy", LATTICE, ids=lambda policy: policy.name)
def test_thoughts_stay_in_the_content_and_a_budget_closes_them(houses: Any, policy: Policy) -> None:
    def content(**fields: Any) -> tuple[str, int]:
        said = ask(houses, policy, body("ponder", **fields)).json()
        return said["choices"][0]["message"]["content"], said["usage"]["completion_tokens"]

    assert content(max_tokens=6) == ("<think>abc</think>d", 6)
    assert content(max_tokens=2, reasoning_budget=2) == ("<think>a</think>c</think>", 5)
    assert content(max_tokens=2, reasoning_budget=9) == ("<think>abc</think>de", 7)


def test_openai_keeps_thoughts_apart_and_bounds_them(houses: Any) -> None:
    asked = told(houses, OPENAI, reasoning_budget=2, max_tokens=5)
    assert asked["limits"] == {"max_tokens": 5, "reasoning_tokens": 2, "answer_tokens": None}
    assert (asked["prompt"], asked["reasoning_apart"]) == ("tell", True)
    said = ask(houses, OPENAI, body("ponder", reasoning_budget=2, max_tokens=4)).json()
    thought = {"reasoning_content": "a", "reasoning": "a"}
    assert said["choices"][0]["message"] == {"role": "assistant", "content": "c", "refusal": None, **thought}
    assert said["usage"]["completion_tokens"] == 4


# Failures.


@pytest.mark.parametrize("policy", LATTICE, ids=lambda policy: policy.name)
def test_a_failed_reply_is_500_and_tells_no_cause(houses: Any, policy: Policy) -> None:
    answer = ask(houses, policy, body("raise"))
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "inference failed")
    assert ask(houses, policy, body()).status_code == 200


@pytest.mark.parametrize("policy", LATTICE, ids=lambda policy: policy.name)
def test_a_failure_inside_a_stream_ends_it_with_stop(
    houses: Any, policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    """Their issue 933; the log and the app's line know better."""
    answer = ask(houses, policy, body("raise", stream=True))
    assert phases(answer) == [{"role": "assistant"}, {"content": "one "}, "stop"]
    assert "a stream ended early: generation failed" in caplog.text
    eventually(lambda: houses[policy.name].said_lines()[-1]["status"] == 200)
    line = houses[policy.name].said_lines()[-1]
    assert (line["tokens"], line["stream"]) == (0, True)


def test_a_failure_before_the_first_text(houses: Any) -> None:
    assert code(ask(houses, LATTICE_061, body("first", stream=True))) == (500, "internal_error")
    assert phases(ask(houses, LATTICE_050, body("first", stream=True))) == [{"role": "assistant"}, "stop"]


@pytest.mark.parametrize("policy", LATTICE, ids=lambda policy: policy.name)
def test_a_full_queue_is_503(policy: Policy) -> None:
    settings, slots = with_settings(policy=policy), EngineSettings(max_rows=1, max_pending=0)
    with (
        stage(REPLIES, settings=settings, engine=slots) as house,
        house.client() as one,
        one.stream("POST", PATH, json=body("hang", stream=True)) as running,
    ):
        lines = running.iter_lines()
        next(lines)
        answer = one.post(PATH, json=body())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["message"].startswith("the server is busy")


@pytest.mark.parametrize("policy", LATTICE, ids=lambda policy: policy.name)
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", PATH, 405), ("POST", "/health", 405), ("GET", "/v1/models/echo", 404), ("GET", "/v1", 404)],
)
def test_other_paths_and_methods_have_the_envelope(
    houses: Any, policy: Policy, method: str, path: str, status: int
) -> None:
    answer = ask(houses, policy, method=method, path=path)
    names = ["message", "type", "code", "param"] if policy is LATTICE_061 else ["message", "type"]
    assert (answer.status_code, list(answer.json()["error"])) == (status, names)
