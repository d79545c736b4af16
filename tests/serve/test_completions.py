"""/v1/completions, /tokenize and /detokenize, in process: every kind of prompt, every shape of an answer.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from lattice_cli.errors import BadRequest
from lattice_cli.events import Finished, Piece, Timing, TokenScore, Usage
from lattice_cli.job import Channel
from lattice_cli.serve.wire import Ask, Echo
from lattice_cli.serve.wire.completions import CompletionsDialect
from lattice_cli.serve.wire.completions_voice import CompletionsVoice
from tests.serve.stage import HELLO, Stage, stage

PATH = "/v1/completions"
REPLIES = [
    {"when": "one", "tokens": ["uno", "!"]},
    {"when": "two", "tokens": ["due"]},
    {"when": "tell", "tokens": [], "tell": True},
    {"when": "raise", "tokens": ["so ", "far"], "raise_at": 1},
    {"when": "think", "tokens": ["<think>", "hm", "</think>", "ok"]},
    HELLO,
]


@pytest.fixture(scope="module")
def house() -> Iterator[Stage]:
    with stage(REPLIES, think=["<think>", "</think>"]) as one:
        yield one


@pytest.fixture
def client(house: Stage) -> Iterator[httpx2.Client]:
    with house.client() as one:
        yield one


def events(response: httpx2.Response) -> list[Any]:
    found = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    assert found.pop() == "[DONE]"
    return [json.loads(data) for data in found]


def texts(answer: Any) -> list[tuple[int, str]]:
    return [(choice["index"], choice["text"]) for choice in answer["choices"]]


@pytest.mark.wire
def test_the_openai_client_completes_a_text(house: Stage) -> None:
    """Report 13: `object` is text_completion; report 89: 16 tokens where no limit is named, as OpenAI has it."""
    with house.openai() as one:
        answer = one.completions.create(model="echo", prompt="tell me")
        chunks = list(one.completions.create(model="echo", prompt="one", stream=True))
    asked = json.loads(answer.choices[0].text)
    assert (asked["prompt"], asked["limits"]["max_tokens"], asked["reasoning_apart"]) == ("tell me", 16, False)
    assert (answer.object, answer.choices[0].finish_reason) == ("text_completion", "stop")
    assert answer.id.startswith("cmpl-")
    assert [chunk.choices[0].text for chunk in chunks] == ["uno", "!", ""]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "stop"]
    assert {(chunk.id, chunk.object, chunk.model) for chunk in chunks} == {(chunks[0].id, "text_completion", "echo")}


@pytest.mark.wire
def test_several_prompts_are_several_choices(client: httpx2.Client) -> None:
    """A list of prompts killed mlx_lm.server's generation thread; report 91."""
    answer = client.post(PATH, json={"prompt": ["one", "two"], "n": 2, "echo": True}).json()
    assert texts(answer) == [(0, "oneuno!"), (1, "oneuno!"), (2, "twodue"), (3, "twodue")]
    assert answer["usage"]["prompt_tokens"] == 6
    assert answer["usage"]["completion_tokens"] == 6
    assert all(choice["logprobs"] is None for choice in answer["choices"])


@pytest.mark.wire
def test_prompts_may_be_ids(client: httpx2.Client) -> None:
    """A scripted model's first 256 ids are bytes."""
    assert texts(client.post(PATH, json={"prompt": list(b"one")}).json()) == [(0, "uno!")]
    lists = [list(b"two"), list(b"one")]
    assert texts(client.post(PATH, json={"prompt": lists, "echo": True}).json()) == [(0, "twodue"), (1, "oneuno!")]


@pytest.mark.wire
def test_the_joined_stream_is_the_whole_answer(client: httpx2.Client) -> None:
    asked = {"prompt": ["one", "two"], "n": 2, "echo": True}
    whole = client.post(PATH, json=asked).json()
    told = events(client.post(PATH, json={**asked, "stream": True, "stream_options": {"include_usage": True}}))
    joined = ["".join(t for event in told for at, t in texts(event) if at == index) for index in range(4)]
    assert joined == [text for _, text in texts(whole)]
    assert told[-1]["usage"] == whole["usage"]
    assert [event["usage"] for event in told[:-1]] == [None] * (len(told) - 1)
    ends = [one["index"] for event in told for one in event["choices"] if one["finish_reason"] == "stop"]
    assert sorted(ends) == [0, 1, 2, 3]


@pytest.mark.wire
def test_thoughts_are_part_of_a_raw_text(client: httpx2.Client) -> None:
    """Report 56: both tags, in both modes."""
    assert texts(client.post(PATH, json={"prompt": "think"}).json()) == [(0, "<think>hm</think>ok")]
    told = events(client.post(PATH, json={"prompt": "think", "stream": True}))
    assert "".join(text for event in told for _, text in texts(event)) == "<think>hm</think>ok"


@pytest.mark.wire
def test_no_tokens_may_be_asked_for(client: httpx2.Client) -> None:
    answer = client.post(PATH, json={"prompt": "one", "max_tokens": 0, "echo": True}).json()
    assert texts(answer) == [(0, "one")]
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 0)
    told = events(client.post(PATH, json={"prompt": "one", "max_tokens": 0, "stream": True}))
    assert [event["choices"][0]["finish_reason"] for event in told] == ["length"]


@pytest.mark.wire
def test_stops_and_limits_hold_here_too(client: httpx2.Client) -> None:
    """Reports 10 and 27."""
    answer = client.post(PATH, json={"prompt": "x", "stop": ["o w"]}).json()
    assert (texts(answer), answer["choices"][0]["finish_reason"]) == ([(0, "hell")], "stop")
    answer = client.post(PATH, json={"prompt": "x", "max_tokens": 1}).json()
    assert (texts(answer), answer["choices"][0]["finish_reason"]) == ([(0, "hello")], "length")


@pytest.mark.wire
def test_a_fault_in_a_stream_is_an_event_and_no_finish(client: httpx2.Client) -> None:
    told = events(client.post(PATH, json={"prompt": "raise", "stream": True}))
    assert texts(told[0]) == [(0, "so ")]
    assert told[1:] == [
        {"error": {"message": "generation failed", "type": "server_error", "param": None, "code": "internal_error"}}
    ]


REFUSED: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({}, ("invalid_request", "prompt")),
    ({"prompt": None}, ("invalid_request", "prompt")),
    ({"prompt": []}, ("invalid_request", "prompt")),
    ({"prompt": ["a", [1]]}, ("invalid_request", "prompt")),
    ({"prompt": [1, "a"]}, ("invalid_request", "prompt")),
    ({"prompt": [-1]}, ("invalid_request", "prompt[0]")),
    ({"prompt": [[5, -1]]}, ("invalid_request", "prompt[0][1]")),
    ({"prompt": [1.5]}, ("invalid_request", "prompt[0]")),
    ({"prompt": [True]}, ("invalid_request", "prompt[0]")),
    ({"prompt": [[1], [-1]]}, ("invalid_request", "prompt[1][0]")),
    ({"prompt": {}}, ("invalid_request", "prompt")),
    ({"prompt": ["a"] * 9, "n": 16}, ("invalid_request", "prompt")),
    ({"prompt": "a", "suffix": "b"}, ("unsupported_feature", "suffix")),
    ({"prompt": "a", "best_of": 3}, ("unsupported_feature", "best_of")),
    ({"prompt": "a", "max_tokens": -1}, ("invalid_max_tokens", "max_tokens")),
    ({"prompt": "a", "stream_options": {}}, ("invalid_request", "stream_options")),
    ({"prompt": "a", "tools": [{"type": "function"}]}, ("unsupported_feature", "tools")),
]


@pytest.mark.pure
@pytest.mark.parametrize(("fields", "answer"), REFUSED, ids=lambda value: json.dumps(value)[:60])
def test_what_cannot_be_is_refused_with_its_place(fields: dict[str, Any], answer: tuple[str, str]) -> None:
    """Report 91: `best_of`, `suffix` and odd prompts were accepted and ignored."""
    with pytest.raises(BadRequest) as refused:
        CompletionsDialect().parse(json.dumps(fields).encode())
    assert (refused.value.code, refused.value.param) == answer


@pytest.mark.pure
def test_what_changes_nothing_is_accepted() -> None:
    fields = {"prompt": "a", "suffix": "", "best_of": 2, "n": 2, "user": "me", "echo": None, "logprobs": None}
    assert CompletionsDialect().parse(json.dumps(fields).encode()) == Ask(
        prompts=("a",), choices=2, usual_max_tokens=16
    )


@pytest.mark.wire
@pytest.mark.parametrize("prompt", ["", [""], [[]]])
def test_an_empty_prompt_is_refused_where_nothing_begins_a_text(client: httpx2.Client, prompt: Any) -> None:
    """It killed mlx_lm.server's generation thread."""
    answer = client.post(PATH, json={"prompt": prompt})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
    assert client.post(PATH, json={"prompt": "one"}).status_code == 200


@pytest.mark.wire
def test_ids_that_the_vocabulary_lacks_are_refused(client: httpx2.Client) -> None:
    """On a CPU such an id ended a process of mlx_lm.server."""
    for prompt in ([10**9], [[1], [10**9]]):
        answer = client.post(PATH, json={"prompt": prompt})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.wire
def test_a_prompt_over_the_window_names_both_counts(client: httpx2.Client) -> None:
    """Reports 90 and 93."""
    answer = client.post(PATH, json={"prompt": "x" * 5000, "stream": True})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    assert "5000 tokens" in error["message"] and "4096 tokens" in error["message"]


@pytest.mark.wire
def test_the_openai_client_meets_refusals_as_its_own(house: Stage) -> None:
    import openai  # the pure tests of this file need none

    with house.openai() as one, pytest.raises(openai.BadRequestError) as refused:
        one.completions.create(model="echo", prompt="a", suffix="b")
    assert refused.value.param == "suffix"


# Spelling.


def score(text: str, logprob: float, *top: tuple[str, float]) -> TokenScore:
    return TokenScore(0, text.encode(), logprob, tuple((one.encode(), value) for one, value in top))


@pytest.mark.pure
def test_four_lists_side_by_side_over_prompt_and_reply() -> None:
    """Report 91: echo with log-probabilities; the first token of a prompt has none."""
    ask = Ask(prompts=("a é",), choices=2, logprobs=1, echo=True)
    echo = Echo("a é", (b"a", score(" ", -1.0, (" ", -1.0)), score("é", -2.0, ("e", -0.5))))
    voice = CompletionsVoice("cmpl-1", 7, "m", ask, [echo])
    frames = [
        *voice.open(1),
        *voice.chunk(1, Piece("j", Channel.ANSWER, "x", (score("x", -0.25, ("x", -0.25)),))),
        *voice.chunk(1, Piece("j", Channel.ANSWER, "", (TokenScore(0, b"\xf0\x9f", -3.0, ((b"\xf0\x9f", -3.0),)),))),
        *voice.close(1, Finished("j", "stop", Usage(), Timing())),
    ]
    told = [json.loads(frame.data)["choices"][0] for frame in frames]
    assert [one["text"] for one in told] == ["a é", "x", "", ""]
    assert told[0]["logprobs"] == {
        "tokens": ["a", " ", "é"],
        "token_logprobs": [None, -1.0, -2.0],
        "top_logprobs": [None, {" ": -1.0}, {"e": -0.5, "é": -2.0}],
        "text_offset": [0, 1, 2],
    }
    assert told[1]["logprobs"] == {
        "tokens": ["x"],
        "token_logprobs": [-0.25],
        "top_logprobs": [{"x": -0.25}],
        "text_offset": [3],
    }
    assert told[2]["logprobs"]["tokens"] == ["bytes:\\xf0\\x9f"]
    assert (told[3]["logprobs"], told[3]["finish_reason"]) == (None, "stop")


# Tokens.


@pytest.mark.wire
def test_tokens_of_a_text_and_back(client: httpx2.Client) -> None:
    """In vLLM's words, and in llama-server's `content`."""
    assert client.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json() == {
        "count": 3, "max_model_len": 4096, "tokens": [104, 195, 169], "token_strs": ["h", "\ufffd", "\ufffd"],
    }  # fmt: skip
    assert client.post("/tokenize", json={"content": "hé"}).json()["tokens"] == [104, 195, 169]
    assert client.post("/detokenize", json={"tokens": [104, 195, 169]}).json() == {"prompt": "hé", "content": "hé"}


@pytest.mark.wire
def test_tokens_of_a_chat_are_those_of_its_prompt(client: httpx2.Client) -> None:
    messages = [{"role": "user", "content": "hi"}]
    counted = client.post("/tokenize", json={"messages": messages}).json()["count"]
    usage = client.post("/v1/chat/completions", json={"messages": messages}).json()["usage"]
    assert counted == usage["prompt_tokens"]


@pytest.mark.wire
@pytest.mark.parametrize(
    ("path", "fields", "answer"),
    [
        ("/tokenize", {}, (400, "prompt")),
        ("/tokenize", {"prompt": "a", "content": "b"}, (400, "prompt")),
        ("/tokenize", {"prompt": 5}, (400, "prompt")),
        ("/tokenize", {"messages": []}, (400, "messages")),
        ("/tokenize", {"prompt": "a", "model": "other"}, (404, "model")),
        ("/detokenize", {}, (400, "tokens")),
        ("/detokenize", {"tokens": ["a"]}, (400, "tokens[0]")),
        ("/detokenize", {"tokens": [-1]}, (400, "tokens[0]")),
        ("/detokenize", {"tokens": [10**12]}, (400, "tokens")),
    ],
)
def test_odd_tokens_are_refused(client: httpx2.Client, path: str, fields: Any, answer: tuple[int, str]) -> None:
    told = client.post(path, json=fields)
    assert (told.status_code, told.json()["error"]["param"]) == answer
