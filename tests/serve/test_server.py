"""Over a real socket: who leaves when, what waitress says by itself, and how bytes go out.

Thread: any
"""

from __future__ import annotations

import json
import logging
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import requests
import sseclient

from lattice_cli.engine.open import OpenEngine, open_engine
from lattice_cli.errors import LatticeError
from lattice_cli.model.card import ModelSource
from lattice_cli.serve.sockets import listen_on
from lattice_cli.settings import EngineSettings, read_home
from tests.serve.stage import (
    LIMIT_S,
    PATH,
    REPLIES,
    Raw,
    Served,
    body,
    eventually,
    served,
    with_settings,
    write_script,
)

pytestmark = pytest.mark.wire

ONE_SLOT = EngineSettings(max_rows=1, max_pending=1)
ONE_MIB = with_settings(max_body_bytes=1 << 20)


@pytest.fixture(scope="module")
def house() -> Iterator[Served]:
    with served(settings=ONE_MIB) as one:
        yield one


def answers(house: Served) -> None:
    """A request is answered, long before any reply of these tests would end by itself."""
    with house.client() as one:
        answer = one.post(PATH, json=body(max_tokens=1))
        assert answer.json()["choices"][0]["message"]["content"] == "hello"


def envelope(raw: bytes) -> tuple[bytes, dict[str, Any]]:
    """Status line and error of a raw answer."""
    head, _, data = raw.partition(b"\r\n\r\n")
    assert b"Content-Type: application/json" in head
    assert b"X-Request-Id: " in head
    return head.split(b"\r\n")[0], json.loads(data)["error"]


# The OpenAI client over a socket.


def streamed(client: openai.OpenAI, content: str) -> str:
    with client.chat.completions.create(
        model="", messages=[{"role": "user", "content": content}], stream=True
    ) as chunks:
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def whole(client: openai.OpenAI, content: str) -> str | None:
    answer = client.chat.completions.create(model="", messages=[{"role": "user", "content": content}])
    return answer.choices[0].message.content


def test_the_openai_client_completes_and_streams_over_a_socket(house: Served) -> None:
    with house.openai() as one:
        assert whole(one, "hi") == streamed(one, "hi") == "hello world"


def test_six_clients_at_once_get_their_own_answers_over_a_socket() -> None:
    """Reports 96 and 100: a second request interrupted the first, or took over its text."""
    replies = [{"when": f"<{index}>", "tokens": [f"{index}"] * 30, "token_ms": 2} for index in range(6)]

    def ask(index: int) -> str | None:
        with house.openai() as one:
            return (streamed if index % 2 else whole)(one, f"<{index}>")

    with served(replies, engine=EngineSettings(max_rows=4, max_pending=6)) as house, ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(6))) == [f"{index}" * 30 for index in range(6)]


# Who leaves when. The slot is free afterwards: with one row, the next request is answered.


@pytest.mark.parametrize("leave", [Raw.close, Raw.reset], ids=["close", "reset"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("content", ["prefill", "tick", "hang", "mute"])
def test_a_client_that_leaves_frees_its_slot(content: str, stream: bool, leave: Any) -> None:
    """In prefill, in decode, and while nothing comes at all (reports 74, 75, 77; mlx_lm.server kept going
    for 17 s after a plain client had left).
    """
    with served(engine=ONE_SLOT) as house:
        client = house.raw().post(body(content, stream=stream))
        if stream:
            client.until(b'"content":"' if content in ("tick", "hang") else b'"role":"assistant"')
        else:
            eventually(lambda: not house.idle())
        leave(client)
        answers(house)
        eventually(house.idle)


def patient(house: Served) -> httpx2.Response:
    """A client that tries again while it is refused as one too many."""
    with house.client() as one:
        until_s = time.monotonic() + LIMIT_S
        while (answer := one.post(PATH, json=body())).status_code == 429:
            assert time.monotonic() < until_s, "no place was ever free"
    return answer


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
def test_a_client_that_leaves_while_it_waits_frees_its_place(stream: bool) -> None:
    """With one row and one place to wait, the next one may wait there and is answered in its turn."""
    with served(engine=ONE_SLOT) as house, ThreadPoolExecutor(1) as pool, house.client() as one:
        running = house.raw().post(body("hang", stream=True))
        running.until(b'"content":"a"')
        queued = house.raw().post(body(stream=stream))
        if stream:
            queued.until(b": keep-alive")
        eventually(lambda: house.stage.worker.accepted == 2)
        assert one.post(PATH, json=body()).status_code == 429
        queued.close()
        waiting = pool.submit(patient, house)
        eventually(lambda: house.stage.worker.accepted == 3)
        running.close()
        assert waiting.result(LIMIT_S).json()["choices"][0]["message"]["content"] == "hello world"
        eventually(house.idle)


def kill(house: Served, times: int) -> None:
    for _ in range(times):
        client = house.raw().post(body("tick", stream=True))
        client.until(b'"content":"tick "')
        client.reset()
    answers(house)
    eventually(house.idle)


def test_twenty_killed_clients_leave_one_short_log_line_each(caplog: pytest.LogCaptureFixture) -> None:
    """Report 74: tracebacks flooded the log, and once the server went down."""
    caplog.set_level(logging.INFO, logger="lattice")
    with served(engine=ONE_SLOT) as house:
        kill(house, 20)
    said = [record.getMessage().split(" id=")[0] for record in caplog.records if "left" in record.getMessage()]
    assert said == ["the client left"] * 20
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.WARNING]


def test_plain_clients_that_give_up_leave_nothing_behind() -> None:
    """Report 77: finished requests leaked their record."""
    with served(engine=EngineSettings(max_rows=2, max_pending=2)) as house:
        for _ in range(20):
            client = house.raw().post(body("tick", max_tokens=4000))
            eventually(lambda: not house.idle())
            client.close()
            eventually(house.idle)
        answers(house)


@pytest.mark.parametrize("kills", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_clients_that_vanish_at_random_moments_stall_nobody(kills: int) -> None:
    """Report 78: a cancel in mid-decode parked the engine for ever."""
    chance = random.Random(78)

    def vanish(_: int) -> None:
        content = chance.choice(["tick", "hang", "prefill", "mute", "hi"])
        client = house.raw().post(body(content, stream=chance.random() < 0.5))
        client.listen(chance.random() * 0.05)
        client.reset() if chance.random() < 0.5 else client.close()

    with (
        served(engine=EngineSettings(max_rows=3, max_pending=5)) as house,
        ThreadPoolExecutor(6) as pool,
    ):
        assert len(list(pool.map(vanish, range(kills)))) == kills
        eventually(house.idle)
        answers(house)


def test_one_that_leaves_disturbs_no_other() -> None:
    """Report 79 and 96: others' text is untouched."""
    with served() as house, house.client() as one, ThreadPoolExecutor(1) as pool:
        other = pool.submit(one.post, PATH, json=body("tick", max_tokens=20))
        leaver = house.raw().post(body("tick", stream=True))
        leaver.until(b'"content":"tick "')
        leaver.close()
        assert other.result(LIMIT_S).json()["choices"][0]["message"]["content"] == "tick " * 20


# Many at once.


@pytest.mark.parametrize("clients", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_more_clients_than_places_are_answered_or_refused(clients: int) -> None:
    """Report 101: bounded queue, refusals with Retry-After, abandoned entries leave."""
    replies = [{"tokens": ["x"], "prefill_ms": 20}]

    def ask(_: int) -> tuple[int, str | None]:
        answer = requests.post(f"{house.url}{PATH}", json=body(), timeout=LIMIT_S)
        return answer.status_code, answer.headers.get("Retry-After")

    with (
        served(replies, engine=EngineSettings(max_rows=2, max_pending=4)) as house,
        ThreadPoolExecutor(min(clients, 64)) as pool,
    ):
        seen = list(pool.map(ask, range(clients)))
        assert set(seen) <= {(200, None), (429, "1")}
        assert seen.count((200, None)) >= 6
        eventually(house.idle)


def test_health_answers_while_every_place_is_taken() -> None:
    """Report 97: with as many open streams as threads, health hung."""
    engine = EngineSettings(max_rows=2, max_pending=2)
    with served(engine=engine) as house, house.client() as one:
        streams = [house.raw().post(body("hang", stream=True)) for _ in range(4)]
        for stream in streams:
            stream.until(b"\r\n\r\n")
        for path in ("/health", "/v1/models", "/nowhere"):
            assert one.get(path).status_code in (200, 404)  # the streams hang for ever
        assert one.post(PATH, content=b"{").status_code == 400
        assert one.post(PATH, json=body()).status_code == 429
        for stream in streams:
            stream.close()
        eventually(house.idle)


# How bytes go out.


class Stuck:
    """A backend that does not come back from a step until it may."""

    def __init__(self, backend: Any, free: threading.Event) -> None:
        self._backend = backend
        self._free = free

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def advance(self) -> Any:
        assert self._free.wait(LIMIT_S)
        return self._backend.advance()


def test_health_tells_of_an_engine_that_is_stuck(tmp_path: Path) -> None:
    """Report 78: the engine thread was parked for ever, and the server said 200."""
    source = ModelSource("echo", write_script(tmp_path, REPLIES), "script")
    free, engine = threading.Event(), EngineSettings(max_rows=2, max_pending=2)

    def opener() -> OpenEngine:
        return open_engine(source, read_home(), engine, watch=lambda backend: Stuck(backend, free))

    with served(opener=opener, settings=with_settings(stall_s=0.1)) as house, house.client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        asking = house.raw().post(body())
        eventually(lambda: client.get("/health").status_code == 503)
        assert client.get("/health").json() == {"status": "stalled"}
        assert "lattice_turn_seconds 0.0\n" not in client.get("/metrics").text
        free.set()
        asking.until(b"hello world")
        asking.close()
        eventually(lambda: client.get("/health").status_code == 200)
        eventually(house.idle)


def test_an_event_leaves_when_it_is_made(house: Served) -> None:
    """Reports 19 and 20: small parts waited in a buffer. The model hangs after its first token."""
    with house.raw().post(body("hang", stream=True)) as client:
        told = client.until(b'"content":"a"')
    head = told.split(b"\r\n\r\n")[0].split(b"\r\n")
    fixed = [line for line in head if not line.startswith((b"Date: ", b"X-Request-Id: "))]
    assert fixed == [
        b"HTTP/1.1 200 OK",
        b"Cache-Control: no-cache",
        b"Connection: close",
        b"Content-Type: text/event-stream; charset=utf-8",
        b"Server: lattice",
        b"Transfer-Encoding: chunked",
        b"X-Accel-Buffering: no",
    ]
    eventually(house.idle)


@pytest.mark.parametrize("content", ["prefill", "mute"])
def test_a_silent_stream_is_kept_alive_over_a_socket(house: Served, content: str) -> None:
    """Report 16: 300 ms of silence at a keep-alive of 50 ms."""
    with house.raw().post(body(content, stream=True)) as client:
        client.until(b": keep-alive\n\n", times=6)
    eventually(house.idle)


def test_text_with_line_ends_of_every_kind_survives_clients() -> None:
    """Report 8: U+2028, U+2029 and U+0085 cut events in two for sseclient-py and requests."""
    text = ["a\u2028b", "\u2029", "\x85", "\r", "\n\n", "é", "c"]
    with served([{"tokens": text}]) as house:
        url = f"{house.url}{PATH}"
        with requests.post(url, json=body(stream=True), stream=True, timeout=LIMIT_S) as answer:
            data = [event.data for event in sseclient.SSEClient(answer).events()]
        assert data[-1] == "[DONE]"
        chunks = [json.loads(one)["choices"][0]["delta"].get("content", "") for one in data[:-1]]
        assert "".join(chunks) == "".join(text)
        with requests.post(url, json=body(stream=True), stream=True, timeout=LIMIT_S) as answer:
            lines = [line for line in answer.iter_lines(decode_unicode=True) if line]
        assert [_shape(line.removeprefix("data: ")) for line in lines] == [_shape(one) for one in data]


def _shape(data: str) -> Any:
    return data if data == "[DONE]" else json.loads(data)["choices"]


def test_a_long_answer_goes_out_whole() -> None:
    """Report 20: a large body."""
    with served([{"tokens": ["x" * 1_000_000]}]) as house, house.client() as one:
        assert len(one.post(PATH, json=body()).json()["choices"][0]["message"]["content"]) == 1_000_000


def test_a_connection_is_kept_for_the_next_request(house: Served) -> None:
    with requests.Session() as session:
        for _ in range(3):
            answer = session.post(f"{house.url}{PATH}", json=body(), timeout=LIMIT_S)
            assert "Connection" not in answer.headers
        assert session.get(f"{house.url}/health", timeout=LIMIT_S).json() == {"status": "ok"}
        assert session.post(f"{house.url}{PATH}", json=body(max_tokens=0), timeout=LIMIT_S).status_code == 400
        assert sum(pool.num_connections for pool in _pools(session)) == 1


def _pools(session: requests.Session) -> list[Any]:
    manager = session.get_adapter("http://").poolmanager
    return [manager.pools[key] for key in manager.pools.keys()]  # noqa: SIM118


# How bytes come in.


def test_a_chunked_body_is_read(house: Served) -> None:
    """Report 86."""
    data = json.dumps(body()).encode()
    with requests.post(
        f"{house.url}{PATH}",
        data=iter([data[:10], data[10:]]),
        headers={"Content-Type": "application/json"},
        timeout=LIMIT_S,
    ) as answer:
        assert answer.json()["choices"][0]["message"]["content"] == "hello world"


def test_a_body_that_waits_for_100_continue_is_read(house: Served) -> None:
    """Report 86."""
    data = json.dumps(body()).encode()
    with house.raw() as client:
        client.send(
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        )
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert b"hello world" in client.send(data).until(b"hello world")


def test_a_post_without_a_length_is_411_over_a_socket(house: Served) -> None:
    """Report 86."""
    with house.raw() as client:
        client.send(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        status, error = envelope(client.rest())
    assert (status, error["code"]) == (b"HTTP/1.1 411 Length Required", "length_required")


def test_a_body_over_the_limit_is_not_asked_for(house: Served) -> None:
    """No `100 Continue` over the limit; the answer is ours, and comes before the body is sent."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {(1 << 20) + 1}\r\n\r\n"
    with house.raw() as client:
        client.send(head.encode())
        status, error = envelope(client.rest())
    assert status == b"HTTP/1.1 413 Request Entity Too Large"
    assert error == {
        "message": "the body is larger than 1 MiB (hint: see `--max-body`)",
        "type": "invalid_request_error",
        "param": None,
        "code": "request_body_too_large",
    }


def test_a_body_over_the_limit_is_refused_to_a_client_that_sends_it_all(house: Served) -> None:
    """A socket closed with unread data takes the answer with it: the client must see 413, not a reset."""
    for _ in range(5):
        answer = requests.post(f"{house.url}{PATH}", json=body("x" * (3 << 20)), timeout=LIMIT_S)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_body_too_large")
    answers(house)


def test_a_chunked_body_over_the_limit_is_refused_before_its_end(house: Served) -> None:
    with house.raw() as client:
        client.send(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        client.send(b"100001\r\n" + b"x" * 0x100001 + b"\r\n")
        status, error = envelope(client.rest())
    assert (status, error["code"]) == (b"HTTP/1.1 413 Request Entity Too Large", "request_body_too_large")


def test_a_body_of_exactly_the_limit_is_read(house: Served) -> None:
    data = json.dumps(body()).encode()
    data += b" " * ((1 << 20) - len(data))
    headers = {"Content-Type": "application/json"}
    for sent in (data, iter([data[: 1 << 19], data[1 << 19 :]])):
        assert requests.post(f"{house.url}{PATH}", data=sent, headers=headers, timeout=LIMIT_S).status_code == 200


@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [
        (b"hello\r\n\r\n", b"HTTP/1.0 400 Bad Request", "the request is not well-formed HTTP"),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"HTTP/1.0 400 Bad Request", "the request is not well-formed HTTP"),
        (
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n".encode(),
            b"HTTP/1.1 400 Bad Request",
            "the request is not well-formed HTTP",
        ),
        (
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".encode(),
            b"HTTP/1.1 400 Bad Request",
            "the request is not well-formed HTTP",
        ),
        (
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n".encode(),
            b"HTTP/1.1 501 Not Implemented",
            "this transfer encoding is not supported",
        ),
        (b"\x16\x03\x01\x02\x00\x01\x00", b"HTTP/1.0 400 Bad Request", "the request is not well-formed HTTP"),
        (
            f"POST {PATH} HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode(),
            b"HTTP/1.1 400 Bad Request",
            "the request is not well-formed HTTP",
        ),
        (
            b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
            b"HTTP/1.0 431 Request Header Fields Too Large",
            "the headers are too large",
        ),
    ],
    ids=["words", "header", "negative length", "chunk", "encoding", "TLS", "two lengths", "long header"],
)
def test_what_is_no_http_is_answered_with_the_envelope(house: Served, sent: bytes, status: bytes, message: str) -> None:
    """Reports 85 and 86; mlx_lm.server dropped such a connection without a word, and a client that spoke TLS waited
    here for 20 s.
    """
    with house.raw() as client:
        answered, error = envelope(client.send(sent).rest())
    assert (answered, error["message"], error["type"]) == (status, message, "invalid_request_error")
    answers(house)


def test_a_body_shorter_than_its_length_costs_nothing(house: Served) -> None:
    """Report 86."""
    with house.raw() as client:
        client.send(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{{".encode())
    answers(house)


def test_a_body_longer_than_its_length_is_cut_there(house: Served) -> None:
    """Report 86: the rest is no request, and the connection ends with that."""
    with house.raw() as client:
        client.send(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}xx\r\n\r\n".encode())
        told = client.rest()
    assert re.findall(rb"HTTP/1.\d \d+", told) == [b"HTTP/1.1 400", b"HTTP/1.0 400"]


def test_refusals_of_the_web_server_have_their_line_too() -> None:
    with served(settings=ONE_MIB) as house:
        with house.raw() as client:
            client.send(b"hello\r\n\r\n").rest()
        eventually(lambda: len(house.stage.said_lines()) == 1)  # said after the answer
        with house.raw() as client:
            client.send(f"POST {PATH} HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n".encode()).rest()
        eventually(lambda: len(house.stage.said_lines()) == 2)
        said = [(line["method"], line["route"], line["status"]) for line in house.stage.said_lines()]
    assert said == [("-", "-", 400), ("POST", PATH, 413)]


# The socket.


def test_a_taken_port_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LatticeError) as refused:
            listen_on("127.0.0.1", port)
    assert refused.value.message == f"cannot listen on 127.0.0.1 port {port}: Address already in use"
    assert refused.value.exit_code == 1


def test_a_host_that_is_none_is_one_sentence() -> None:
    with pytest.raises(LatticeError) as refused:
        listen_on("host.invalid", 0)
    assert refused.value.message.startswith("cannot listen on host.invalid port 0: ")
