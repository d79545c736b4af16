"""The application in process: the real OpenAI client, every route, every refusal.

Thread: any
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest

from lattice_cli.engine.open import OpenEngine
from lattice_cli.errors import BrokenWeights
from lattice_cli.settings import EngineSettings
from tests.serve.stage import HELLO, PATH, REPLIES, Stage, body, eventually, stage, with_settings

pytestmark = pytest.mark.wire


@pytest.fixture(scope="module")
def house() -> Iterator[Stage]:
    with stage() as one:
        yield one


@pytest.fixture
def client(house: Stage) -> Iterator[httpx2.Client]:
    with house.client() as one:
        yield one


def events(response: httpx2.Response) -> list[Any]:
    """The data of a stream; `[DONE]` stays text."""
    found = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    return [data if data == "[DONE]" else json.loads(data) for data in found]


def refused(response: httpx2.Response) -> tuple[int, str, str | None]:
    """Status, code and param of an envelope, which is checked to be one."""
    assert response.headers["content-type"] == "application/json"
    assert sorted(response.json()) == ["error"]
    error = response.json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["message"]
    return response.status_code, error["code"], error["param"]


# The OpenAI client.


def test_the_openai_client_completes(house: Stage) -> None:
    with house.openai() as one:
        answer = one.chat.completions.create(model="echo", messages=[{"role": "user", "content": "hi"}])
    assert answer.choices[0].message.content == "hello world"
    assert (answer.model, answer.object, answer.choices[0].finish_reason) == ("echo", "chat.completion", "stop")
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.usage.prompt_tokens) == (3, 52)
    assert answer.id.startswith("chatcmpl-")


def test_the_openai_client_streams(house: Stage) -> None:
    """Reports 9, 11, 12, 14."""
    with house.openai() as one:
        stream = one.chat.completions.create(
            model="echo",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    assert [chunk.choices[0].delta.content for chunk in chunks[:-1]] == [None, "hello", " ", "world", None]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, None, None, "stop"]
    assert (chunks[-1].choices, chunks[-1].usage is not None) == ([], True)
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1


def test_the_openai_client_meets_our_errors_as_its_own(house: Stage) -> None:
    with house.openai() as one:
        with pytest.raises(openai.BadRequestError) as bad:
            one.chat.completions.create(model="echo", messages=[])
        assert (bad.value.code, bad.value.param) == ("invalid_messages", "messages")
        with pytest.raises(openai.NotFoundError):
            one.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}])
        stream = one.chat.completions.create(model="echo", messages=[{"role": "user", "content": "raise"}], stream=True)
        with pytest.raises(openai.APIError) as broken:
            list(stream)
        assert broken.value.message == "generation failed"


def test_the_openai_client_lists_models(house: Stage) -> None:
    with house.openai() as one:
        assert [model.id for model in one.models.list()] == ["echo"]
        assert one.models.retrieve("echo").owned_by == "lattice"


def test_six_clients_at_once_get_their_own_answers() -> None:
    replies = [{"when": f"<{index}>", "tokens": [f"{index}"] * 20, "token_ms": 1} for index in range(6)]

    def ask(house: Stage, index: int) -> str | None:
        with house.openai() as one:
            answer = one.chat.completions.create(model="", messages=[{"role": "user", "content": f"<{index}>"}])
        return answer.choices[0].message.content

    with stage(replies, engine=EngineSettings(max_rows=3, max_pending=6)) as house, ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda index: ask(house, index), range(6))) == [f"{index}" * 20 for index in range(6)]


# Streamed and whole are the same answer.


@pytest.mark.parametrize("content", ["hi", "think", "emoji", "line ends"])
def test_the_joined_stream_is_the_whole_answer(content: str) -> None:
    """Reports 1, 8 and 10: half characters, cut lines, another finish reason."""
    replies = [
        {"when": "think", "tokens": ["<think>", "hm", "m</thi", "nk>", "4", "2"]},
        {"when": "emoji", "tokens": ["a", {"hex": "f09f"}, {"hex": "98"}, {"hex": "80"}, "b", {"hex": "ff"}]},
        {"when": "line", "tokens": ["a\u2028b", "\u2029", "\x85", "\r\n", "c\n\nd"]},
        HELLO,
    ]
    with stage(replies, think=["<think>", "</think>"]) as house, house.client() as one:
        whole = one.post(PATH, json=body(content)).json()
        told = events(one.post(PATH, json=body(content, stream=True, stream_options={"include_usage": True})))
    deltas = [event["choices"][0]["delta"] for event in told[:-2]]
    message = whole["choices"][0]["message"]
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message.get("reasoning_content", "")
    assert told[-3]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert told[-2]["usage"] == whole["usage"]
    assert told[-1] == "[DONE]"


def test_thoughts_are_apart_and_counted() -> None:
    replies = [{"tokens": ["<think>", "hm", "</think>", "42"]}]
    with stage(replies, think=["<think>", "</think>"]) as house, house.client() as one:
        answer = one.post(PATH, json=body()).json()
    thought = {"reasoning_content": "hm", "reasoning": "hm"}
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "42", "refusal": None, **thought}
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_a_reply_that_reaches_its_limit_says_length(client: httpx2.Client) -> None:
    """Reports 10 and 89."""
    answer = client.post(PATH, json=body("tick", max_tokens=2)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2
    told = events(client.post(PATH, json=body("tick", max_completion_tokens=2, stream=True)))
    assert told[-2]["choices"][0]["finish_reason"] == "length"


def test_a_stop_text_ends_the_reply_and_is_not_sent(client: httpx2.Client) -> None:
    answer = client.post(PATH, json=body(stop=["o w"])).json()
    assert answer["choices"][0] == {
        "index": 0,
        "message": {"role": "assistant", "content": "hell", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }


def test_whole_letters_go_out_as_they_come_and_nothing_empty_does() -> None:
    """Report 2: empty deltas for a while, then a burst; only unfinished bytes may wait."""
    tokens = ["a", "b", {"hex": "f0"}, {"hex": "9f"}, {"hex": "98"}, {"hex": "80"}, "c"]
    with stage([{"tokens": tokens}]) as house, house.client() as one:
        told = events(one.post(PATH, json=body(stream=True)))
    assert [event["choices"][0]["delta"] for event in told[:-1]] == [
        {"role": "assistant"}, {"content": "a"}, {"content": "b"}, {"content": "😀"}, {"content": "c"}, {}
    ]  # fmt: skip


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": ""}, {"role": "user", "content": "hi"}],
        [{"role": "user", "content": ""}],
        [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}],
        [{"role": "assistant", "content": None}, {"role": "user", "content": "hi"}, {"role": "assistant"}],
    ],
)
def test_empty_texts_and_every_order_of_roles_are_answered(client: httpx2.Client, messages: Any) -> None:
    """Report 83."""
    assert client.post(PATH, json={"messages": messages}).status_code == 200


def test_n_choices_are_n_replies(client: httpx2.Client) -> None:
    """mlx_lm.server gave one choice and no error."""
    answer = client.post(PATH, json=body(n=3)).json()
    assert [(one["index"], one["message"]["content"]) for one in answer["choices"]] == [
        (0, "hello world"),
        (1, "hello world"),
        (2, "hello world"),
    ]
    assert answer["usage"]["completion_tokens"] == 9
    assert answer["usage"]["prompt_tokens"] == 52
    told = events(client.post(PATH, json=body(n=3, stream=True)))
    choices = [event["choices"][0] for event in told[:-1]]
    for index in range(3):
        mine = [choice for choice in choices if choice["index"] == index]
        assert [choice["delta"] for choice in mine] == [
            {"role": "assistant"}, {"content": "hello"}, {"content": " "}, {"content": "world"}, {}
        ]  # fmt: skip
        assert [choice["finish_reason"] for choice in mine] == [None, None, None, None, "stop"]


def test_every_part_of_a_message_reaches_the_model(client: httpx2.Client) -> None:
    """Report 87."""
    parts = [{"type": "text", "text": "ra"}, {"type": "text", "text": "ise"}]
    answer = client.post(PATH, json={"messages": [{"role": "user", "content": parts}]})
    assert refused(answer) == (500, "internal_error", None)


# Names.


@pytest.mark.parametrize("model", ["echo", "default", "lattice", "", None])
def test_the_served_model_answers_to_its_names(client: httpx2.Client, model: str | None) -> None:
    """Report 120: one documented rule, and the reply names what answered."""
    assert client.post(PATH, json=body(model=model)).json()["model"] == "echo"


@pytest.mark.parametrize("model", ["gpt-4o", "../../etc", "/etc/passwd", "http://192.0.2.1/x", "org/repo", "\x00"])
def test_another_name_is_404_and_loads_nothing(client: httpx2.Client, model: str) -> None:
    """Report 142: a request's `model` made the server download or load whatever it named."""
    assert refused(client.post(PATH, json=body(model=model))) == (404, "model_not_found", "model")


def test_a_model_id_may_hold_slashes() -> None:
    """Report 119."""
    with stage() as house, house.client() as one:
        answer = one.get("/v1/models/org/repo")
        assert refused(answer) == (404, "model_not_found", "model")
        assert answer.json()["error"]["message"] == 'the model "org/repo" is not served here (hint: there is `echo`)'


def test_aliases_are_names_of_the_served_model() -> None:
    """The reply says the name that was asked for, and lists and pages know it."""
    with stage(settings=with_settings(aliases=("gpt-4o", "org/other"))) as house, house.client() as one:
        assert one.post(PATH, json=body(model="gpt-4o")).json()["model"] == "gpt-4o"
        assert one.post(PATH, json=body(model="default")).json()["model"] == "echo"
        assert [entry["id"] for entry in one.get("/v1/models").json()["data"]] == ["echo", "gpt-4o", "org/other"]
        assert one.get("/v1/models/org/other").json()["id"] == "org/other"
        assert refused(one.post(PATH, json=body(model="org/third"))) == (404, "model_not_found", "model")


def test_strict_fields_refuse_what_nobody_knows() -> None:
    """By name, wherever it is, and whatever the name holds."""
    with stage(settings=with_settings(strict_fields=True)) as house, house.client() as one:
        assert refused(one.post(PATH, json=body(frobnicate=1))) == (400, "unsupported_feature", "frobnicate")
        assert refused(one.post(PATH, json=body(**{"é b": 1}))) == (400, "unsupported_feature", "é b")
        inside = {"messages": [{"role": "user", "content": "hi", "prefix": True}]}
        assert refused(one.post(PATH, json=inside)) == (400, "unsupported_feature", "messages.prefix")
        assert one.post(PATH, json=body(user="me", store=True)).status_code == 200


def test_models_have_the_four_fields(client: httpx2.Client) -> None:
    """Report 119."""
    listed = client.get("/v1/models").json()
    (entry,) = listed.pop("data")
    assert listed == {"object": "list"}
    assert isinstance(entry.pop("created"), int)
    assert entry == {"id": "echo", "object": "model", "owned_by": "lattice"}
    assert client.get("/v1/models/echo").json()["id"] == "echo"


# Routes.


def test_what_this_is(client: httpx2.Client) -> None:
    answer = client.get("/").json()
    answer.pop("version")
    assert answer == {
        "name": "lattice",
        "object": "engine",
        "endpoints": [
            "/v1/chat/completions",
            "/v1/completions",
            "/tokenize",
            "/detokenize",
            "/v1/models",
            "/v1/models/{id}",
            "/health",
            "/metrics",
        ],
    }
    assert client.get("/health").json() == {"status": "ok"}


ROUTES = "POST /v1/chat/completions, POST /v1/completions, POST /tokenize, POST /detokenize, "
ROUTES += "GET /v1/models, GET /v1/models/{id}, GET /health, GET /metrics, GET /"


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "message"),
    [
        ("POST", "/v1/responses", 404, "not_found", "there is no `POST /v1/responses`"),
        ("POST", "/v1/messages", 404, "not_found", "there is no `POST /v1/messages`"),
        ("POST", "/v1/embeddings", 404, "not_found", "there is no `POST /v1/embeddings`"),
        ("POST", "/chat/completions", 404, "not_found", "there is no `POST /chat/completions`"),
        ("POST", f"{PATH}/", 404, "not_found", f"there is no `POST {PATH}/`"),
        ("GET", PATH, 405, "method_not_allowed", f"`{PATH}` does not answer `GET`"),
        ("DELETE", "/v1/models", 405, "method_not_allowed", "`/v1/models` does not answer `DELETE`"),
        ("WEBSOCKET", "/", 400, "invalid_request", None),
        ("BREW", "/health", 400, "invalid_request", None),
        ("GET", "/<script>%0d%0a", 404, "not_found", "there is no `GET /<script>\r\n`"),
    ],
)
def test_a_route_that_is_not_ours_names_ours(
    client: httpx2.Client, method: str, path: str, status: int, code: str, message: str | None
) -> None:
    """Report 146: clients got `400 (no body)` and could not tell why."""
    answer = client.request(method, path, json={})
    assert refused(answer) == (status, code, None)
    assert len(answer.headers["x-request-id"]) == 32
    assert message is None or answer.json()["error"]["message"] == f"{message} (hint: there are {ROUTES})"


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/v1/models/echo"])
def test_head_is_get_without_the_body(client: httpx2.Client, path: str) -> None:
    """Report 146."""
    asked, told = client.head(path), client.get(path)
    assert (asked.status_code, asked.content) == (200, b"")
    assert asked.headers["content-length"] == told.headers["content-length"]


def test_a_request_keeps_its_id(client: httpx2.Client) -> None:
    assert client.get("/health", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = client.get("/health", headers={"X-Request-Id": "a b"}).headers["x-request-id"]
    assert len(made) == 32
    assert len(client.get("/nowhere").headers["x-request-id"]) == 32
    assert client.post(PATH, json=body(stream=True), headers={"X-Request-Id": "s"}).headers["x-request-id"] == "s"


def test_an_api_key_is_accepted_where_none_is_asked(client: httpx2.Client) -> None:
    """Report 145."""
    assert client.get("/health", headers={"Authorization": "Bearer x"}).status_code == 200


# Bodies.


@pytest.mark.parametrize(
    ("content", "headers", "answer"),
    [
        (b"", {}, (400, "invalid_request_body", None)),
        (b"{", {}, (400, "invalid_request_body", None)),
        (b"[" * 100_000, {}, (400, "invalid_request_body", None)),
        (b"\xff\xfe", {}, (400, "invalid_request_body", None)),
        (b"{}", {}, (400, "invalid_messages", "messages")),
        (b"{}", {"Content-Type": "text/plain"}, (415, "unsupported_media_type", None)),
        (b"{}", {"Content-Type": "application/x-www-form-urlencoded"}, (415, "unsupported_media_type", None)),
        (b"{}", {"Content-Encoding": "gzip"}, (415, "unsupported_media_type", None)),
        (b"{}", {"Content-Type": "application/json; charset=gbk"}, (400, "invalid_messages", "messages")),
        (b"{}", {"Content-Type": "application/problem+json"}, (400, "invalid_messages", "messages")),
        (b"{}", {"Content-Type": ""}, (400, "invalid_messages", "messages")),
        (b'{"a":"%b"}' % (b"x" * 2_000_000), {}, (413, "request_body_too_large", None)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_body_that_is_no_request(
    content: bytes, headers: dict[str, str], answer: tuple[int, str, str | None]
) -> None:
    """Reports 82, 85, 86: each is answered with the envelope, and nothing crashes."""
    with stage(settings=with_settings(max_body_bytes=1 << 20)) as house, house.client() as one:
        headers = {"Content-Type": "application/json", **headers}
        assert refused(one.post(PATH, content=content, headers=headers)) == answer
        assert one.post(PATH, json=body()).status_code == 200


def test_a_post_without_a_length_is_411(house: Stage) -> None:
    """Report 86. The in-process client always sends a length, so this is plain WSGI."""
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": PATH,
        "QUERY_STRING": "",
        "SERVER_NAME": "x",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.input": None,
        "wsgi.url_scheme": "http",
        "wsgi.errors": None,
    }
    seen: list[str] = []
    told = b"".join(house.app(environ, lambda status, headers, exc_info=None: seen.append(status)))
    assert seen == ["411 Length Required"]
    assert json.loads(told)["error"]["code"] == "length_required"


def test_fields_that_nobody_knows_are_named_in_a_header(client: httpx2.Client) -> None:
    for stream in (False, True):
        answer = client.post(PATH, json=body(stream=stream, foo_bar=1, baz=None))
        assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, "foo_bar, baz")
    assert "x-ignored-fields" not in client.post(PATH, json=body()).headers


# The window.


def test_a_prompt_over_the_window_is_refused_before_the_stream() -> None:
    """Reports 90, 93 and 95: 200 with no text, a crash, a negative room shown as the user's `max_tokens`."""
    with stage(context_tokens=100, engine=EngineSettings(max_rows=1, max_pending=0)) as house, house.client() as one:
        for stream in (False, True) * 5:
            answer = one.post(PATH, json=body("x" * 60, stream=stream))
            assert refused(answer) == (400, "context_length_exceeded", "messages")
            assert answer.json()["error"]["message"] == (
                "the prompt has 110 tokens and the context window is 100 tokens, so there is no room for an answer "
                "(hint: shorten the conversation)"
            )
        assert one.post(PATH, json=body("x" * 48, stream=True)).status_code == 200
        assert refused(one.post(PATH, json=body(max_tokens=99))) == (400, "context_length_exceeded", "max_tokens")


def test_an_absent_limit_is_what_fits() -> None:
    """Report 90: under the limit the reply is cut to the room left."""
    replies = [{"tokens": ["x"], "then": "repeat"}]
    with stage(replies, prompt_tokens=60, context_tokens=100) as house, house.client() as one:
        assert one.post(PATH, json=body()).json()["usage"]["completion_tokens"] == 39


def test_the_flag_limits_requests_that_name_no_limit() -> None:
    replies = [{"tokens": ["x"], "then": "repeat"}]
    with stage(replies, settings=with_settings(max_tokens=5)) as house, house.client() as one:
        assert one.post(PATH, json=body()).json()["usage"]["completion_tokens"] == 5
        assert one.post(PATH, json=body(max_tokens=7)).json()["usage"]["completion_tokens"] == 7


# Busy, loading, broken, leaving.


def test_a_full_waiting_room_is_429_before_anything_is_queued() -> None:
    """Report 101: overload only showed as endless waiting."""
    with stage(engine=EngineSettings(max_rows=1, max_pending=1)) as house, house.client() as one:
        with (
            one.stream("POST", PATH, json=body("hang", stream=True)),
            one.stream("POST", PATH, json=body("hang", stream=True)) as waiting,
        ):
            assert waiting.status_code == 200
            for stream in (False, True):
                answer = one.post(PATH, json=body(stream=stream))
                assert refused(answer) == (429, "server_busy", None)
                assert (answer.headers["retry-after"], answer.json()["error"]["type"]) == ("1", "rate_limit_error")
            assert refused(one.post(PATH, json=body(max_tokens=0))) == (400, "invalid_max_tokens", "max_tokens")
        eventually(house.worker.idle)
        assert one.post(PATH, json=body()).status_code == 200


def test_while_the_model_loads_everything_answers_at_once_and_says_so() -> None:
    """Report 97."""
    loaded = threading.Event()

    def opener() -> OpenEngine:
        assert loaded.wait(10)
        raise BrokenWeights("`model.safetensors` is cut short")

    with stage(opener=opener, ready=False) as house, house.client() as one:
        health = one.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "loading"})
        for answer in (one.post(PATH, json=body()), one.post(PATH, json=body(stream=True)), one.get("/v1/models")):
            assert refused(answer) == (503, "engine_unavailable", None)
            assert answer.headers["retry-after"] == "2"
            assert answer.json()["error"]["message"] == "the model is still loading"
        assert refused(one.post(PATH, content=b"{")) == (400, "invalid_request_body", None)
        assert refused(one.post(PATH, json=body(max_tokens=0))) == (400, "invalid_max_tokens", "max_tokens")
        assert one.get("/nowhere").status_code == 404
        loaded.set()
        with pytest.raises(BrokenWeights):
            house.worker.wait_ready(10)
        health = one.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "broken"})
        assert refused(one.post(PATH, json=body())) == (503, "engine_unavailable", None)


def test_a_server_that_leaves_takes_no_new_work() -> None:
    with stage() as house, house.client() as one:
        with one.stream("POST", PATH, json=body("hang", stream=True)) as running:
            lines = running.iter_lines()
            assert '"role":"assistant"' in said(lines)
            house.worker.drain()
            health = one.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": "draining"})
            answer = one.post(PATH, json=body())
            assert refused(answer) == (503, "engine_unavailable", None)
            assert house.worker.stop(10)
            rest = [line for line in lines if line]
        assert rest[-2:] == [
            'data: {"error":{"message":"the server is shutting down","type":"server_error","param":null,'
            '"code":"engine_unavailable"}}',
            "data: [DONE]",
        ]
        assert not any("finish_reason" in line and '"stop"' in line for line in rest)


def test_a_queued_request_still_has_an_honest_status_when_the_server_leaves() -> None:
    """Before the stream is committed a failure is an HTTP status (reports 15 and 21)."""
    settings = with_settings(commit_s=60.0)
    with (
        stage(engine=EngineSettings(max_rows=1, max_pending=2), settings=settings) as house,
        house.client() as one,
        ThreadPoolExecutor(2) as pool,
        one.stream("POST", PATH, json=body("hang", stream=True)) as running,
    ):
        assert running.status_code == 200
        queued = [pool.submit(one.post, PATH, json=body(stream=stream)) for stream in (False, True)]
        eventually(lambda: house.worker.accepted == 3)
        assert house.worker.stop(10)
        for answer in queued:
            assert refused(answer.result(10)) == (503, "engine_unavailable", None)


# Faults.


def test_a_fault_in_a_whole_answer_is_500_and_costs_nobody_else(client: httpx2.Client) -> None:
    with client.stream("POST", PATH, json=body("tick", stream=True, max_tokens=10)) as other:
        lines = other.iter_lines()
        next(lines)
        answer = client.post(PATH, json=body("raise"))
        assert refused(answer) == (500, "internal_error", None)
        assert answer.json()["error"]["message"] == "generation failed"
        assert sum("tick" in line for line in lines) == 10


def test_a_fault_in_a_stream_is_an_event_and_no_finish(client: httpx2.Client) -> None:
    """Report 15: a stream that lies."""
    told = events(client.post(PATH, json=body("raise", stream=True)))
    assert [event["choices"][0]["delta"] for event in told[:2]] == [{"role": "assistant"}, {"content": "one "}]
    assert told[2:] == [
        {"error": {"message": "generation failed", "type": "server_error", "param": None, "code": "internal_error"}},
        "[DONE]",
    ]


def test_one_reply_of_several_that_fails_ends_the_answer() -> None:
    with stage([{"tokens": ["a"], "raise_at": 0}]) as house, house.client() as one:
        assert refused(one.post(PATH, json=body(n=2))) == (500, "internal_error", None)
        assert events(one.post(PATH, json=body(n=2, stream=True)))[-1] == "[DONE]"
        eventually(house.worker.idle)


# Time.


def said(lines: Iterator[str]) -> str:
    """The next line with something in it."""
    return next(line for line in lines if line and not line.startswith(":"))


def test_a_queued_stream_is_committed_and_kept_alive_by_the_clock() -> None:
    """Report 16: no byte, not even headers, while a request waits behind another."""
    with (
        stage(engine=EngineSettings(max_rows=1, max_pending=1)) as house,
        house.client() as one,
        one.stream("POST", PATH, json=body("hang", stream=True)),
        one.stream("POST", PATH, json=body(stream=True)) as queued,
    ):
        lines = queued.iter_lines()
        assert queued.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert [next(lines) for _ in range(6)] == [": keep-alive", ""] * 3


@pytest.mark.parametrize("content", ["prefill", "mute", "held back"])
def test_a_silent_stream_is_kept_alive_by_the_clock(content: str) -> None:
    """Reports 16 and 18: prefill, a reply that makes no token, text that is withheld."""
    held = {"when": "held", "tokens": ["x"], "then": "repeat", "token_ms": 5}
    with stage([held, *REPLIES]) as house, house.client() as one:
        asked = body(content, stream=True, stop="x" * 2000, max_tokens=3000)
        with one.stream("POST", PATH, json=asked) as answer:
            lines = answer.iter_lines()
            assert '"role":"assistant"' in said(lines)  # a slow engine may take longer than the first keep-alive
            next(lines)
            assert [next(lines) for _ in range(6)] == [": keep-alive", ""] * 3
        eventually(house.worker.idle)


def test_text_goes_out_as_it_comes() -> None:
    """Report 19: small parts must not wait in a buffer; the model hangs after its first token here."""
    with stage() as house, house.client() as one:
        with one.stream("POST", PATH, json=body("hang", stream=True)) as answer:
            lines = answer.iter_lines()
            assert '"role":"assistant"' in said(lines)
            assert '"content":"a"' in said(lines)
        eventually(house.worker.idle)


def test_a_client_that_stops_reading_frees_its_row(house: Stage) -> None:
    with house.openai() as one:
        stream = one.chat.completions.create(model="", messages=[{"role": "user", "content": "hang"}], stream=True)
        next(iter(stream))
        stream.close()
    eventually(house.worker.idle)


# Lines.


def test_each_request_has_one_line() -> None:
    with stage() as house, house.client() as one:
        one.post(PATH, json=body())
        one.post(PATH, json=body(stream=True))
        one.post(PATH, json=body("raise", stream=True))
        one.post(PATH, json=body(max_tokens=0, stream=True))
        one.get("/v1/models/a/b")
        said = house.said_lines()
    for line in said:
        assert line.pop("dur_ms") >= 0
    post = {"ev": "http_request", "method": "POST", "route": PATH}
    assert said == [
        {**post, "status": 200, "tokens": 3, "stream": False},
        {**post, "status": 200, "tokens": 3, "stream": True},
        {**post, "status": 200, "tokens": None, "stream": True},
        {**post, "status": 400, "tokens": None, "stream": False},
        {
            "ev": "http_request",
            "method": "GET",
            "route": "/v1/models/a/b",
            "status": 404,
            "tokens": None,
            "stream": False,
        },
    ]


def test_prompts_are_logged_only_when_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="lattice")
    for wanted in (False, True):
        with stage(settings=with_settings(log_prompts=wanted)) as house, house.client() as one:
            one.post(PATH, json=body("my secret"))
        assert ("my secret" in caplog.text) is wanted
