"""A server that lies in each way makes a case fail, over a real socket; one that tells the truth does not.

Thread: any
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import msgspec
import pytest

from lattice_cli.address import Address, read_address
from lattice_cli.bench.load import read_target
from lattice_cli.bench.parity import Verdict, replay_at
from lattice_cli.bench.parity_call import Call, NoAnswer
from lattice_cli.bench.parity_case import Case, Request
from lattice_cli.errors import UsageError
from tests.bench.stub import Reply, refuse, serving, stream

pytestmark = pytest.mark.wire

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


ROLE, TEXT, END = chunk({"role": "assistant"}), chunk({"content": "hi"}), chunk({}, "stop")
STREAMED = {"request": {"body": {}}, "expect": {"sse": ["role", {"content": "hi"}, {"finish": "stop"}, "done"]}}
ENVELOPE = {"error": {"message": "no", "type": "invalid_request_error", "code": "invalid_role", "param": None}}
REFUSED = {"request": {"body": {}}, "expect": {"status": 400, "code": "invalid_role", "message": "no"}}


def verdict(reply: Reply, case: dict[str, Any], limit_s: float = 5) -> Verdict:
    with serving(reply) as stub:
        (found,) = replay_at(read_address(stub.url), {"s": [msgspec.convert({"name": "c", **case}, Case)]}, limit_s)
    return found


def differs_at(reply: Reply, case: dict[str, Any], limit_s: float = 5) -> str | None:
    there = verdict(reply, case, limit_s).divergence
    return there.place if there else None


def test_the_truth_agrees() -> None:
    assert verdict(stream(ROLE, TEXT, END), STREAMED).word == "agrees"
    assert verdict(stream(ROLE, ": a comment\n\n", TEXT, END), STREAMED).word == "agrees"
    assert verdict(refuse(400, json.dumps(ENVELOPE)), REFUSED).word == "agrees"


@pytest.mark.parametrize(
    ("reply", "place"),
    [
        (stream(ROLE, TEXT, END, done=False), "stream"),
        (stream(ROLE, TEXT, END, "data: [DONE]\n\n"), "frame 4"),
        (stream(ROLE, TEXT, END, END), "frame 3"),
        (stream(TEXT, END), "frame 0"),
        (stream(ROLE, chunk({"content": "ho"}), END), "frame 1 content"),
        (stream(ROLE, TEXT, chunk({}, "length")), "frame 2 finish"),
        (stream(ROLE, TEXT, {"error": {"message": "boom"}}), "frame 2"),
        (stream(ROLE, f"event: delta\ndata: {json.dumps(TEXT)}\n\n", END), "frame 1"),
        (refuse(200, "data: [DONE]\n\n"), "header content-type"),
        (refuse(500, "boom"), "status"),
    ],
)
def test_a_stream_that_lies_differs(reply: Reply, place: str) -> None:
    assert differs_at(reply, STREAMED) == place


@pytest.mark.parametrize(
    ("status", "change", "place"),
    [
        (404, {}, "status"),
        (400, {"code": "invalid_request"}, "/error/code"),
        (400, {"message": "No"}, "/error/message"),
        (400, {"hint": "more"}, "/error"),
    ],
)
def test_a_refusal_that_lies_differs(status: int, change: dict[str, str], place: str) -> None:
    body = json.dumps({"error": {**ENVELOPE["error"], **change}})
    assert differs_at(refuse(status, body), REFUSED) == place


def test_a_refusal_that_is_no_json_differs() -> None:
    assert differs_at(refuse(400, "<html>"), REFUSED) == "body"


def test_an_answer_that_never_ends_differs_in_time() -> None:
    def endless(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        stream(ROLE, TEXT, END)(handler, body)
        handler.connection.settimeout(5)
        handler.connection.recv(1)  # until the client leaves

    found = verdict(endless, STREAMED, limit_s=0.2)
    assert found.divergence is not None
    assert (found.divergence.place, found.seconds < 5) == ("body", True)


def test_a_body_shorter_than_it_says_differs() -> None:
    def cut(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        handler.send_response(400)
        handler.send_header("content-length", "9999")
        handler.end_headers()
        handler.wfile.write(json.dumps(ENVELOPE).encode())

    assert differs_at(cut, REFUSED) == "body"


def test_no_answer_at_all_differs() -> None:
    def silent(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        return

    assert differs_at(silent, REFUSED) == "answer"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        case = msgspec.convert({"name": "c", **REFUSED}, Case)
        (found,) = replay_at(Address("127.0.0.1", mute.getsockname()[1]), {"s": [case]}, 0.1)
    assert found.divergence is not None and found.divergence.got == "no answer in 0.1 s"


def test_steps_wait_read_leave_and_compare() -> None:
    """Quiet sees an early answer, read an early end, same a difference."""
    count = iter(range(9))

    def counting(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        refuse(200, json.dumps({"n": next(count)}))(handler, body)

    send = [{"do": "send", "name": name, "request": {"body": {}}} for name in "ab"]
    seen = [{"do": "expect", "of": name, "expect": {}} for name in "ab"]
    same = {"do": "same", "of": ["a", "b"], "at": "/n"}
    there = verdict(counting, {"steps": [*send, *seen, same]}).divergence
    assert there is not None and (there.place, {there.expected, there.got}) == ("/n", {"0", "1"})  # either may be first
    assert differs_at(counting, {"steps": [*send, *seen, {**same, "at": "/m"}]}) == "/m"
    assert differs_at(counting, {"steps": [send[0], {"do": "quiet", "of": "a", "ms": 2000}]}) == "a"
    assert differs_at(counting, {"steps": [send[0], {"do": "read", "of": "a", "until": "zzz"}]}) == "a: body"
    assert differs_at(counting, {"steps": [send[0], {"do": "read", "of": "a", "until": "n"}, seen[0]]}) is None
    assert differs_at(counting, {"steps": [*send, {"do": "leave", "of": "a"}, seen[1]]}) is None


@contextmanager
def hearing(
    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
) -> Iterator[tuple[Address, Callable[[], bytes]]]:
    """A listener that keeps what it hears, byte for byte, and answers after a moment's silence."""
    heard = bytearray()

    def listen() -> None:
        connection, _ = server.accept()
        with connection:
            connection.settimeout(0.2)
            try:
                while data := connection.recv(65536):
                    heard.extend(data)
            except TimeoutError:
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield Address("127.0.0.1", server.getsockname()[1]), lambda: bytes(heard)
        thread.join(5)


@pytest.mark.parametrize(
    ("request_", "lines", "body"),
    [
        ({"body": {"a": "é"}}, [b"content-type: application/json", b"content-length: 10"], '{"a":"é"}'.encode()),
        ({"raw": ["x"], "declared": 999}, [b"content-length: 999"], b"x"),
        ({"raw": ["abcde"], "chunk": 3}, [b"transfer-encoding: chunked"], b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"),
        ({"body": 1, "headers": {"content-type": None, "x-a": "b"}}, [b"x-a: b"], b"1"),
        ({"method": "GET", "path": "/health"}, [b"GET /health HTTP/1.1"], b""),
    ],
)
def test_a_request_goes_out_as_written(request_: dict[str, Any], lines: list[bytes], body: bytes) -> None:
    with hearing() as (address, heard):
        call = Call(address, msgspec.convert(request_, Request), 5)
        assert call.answer().status == 200
        call.close()
    head, sent = heard().split(b"\r\n\r\n", 1)
    assert sent == body
    assert set(lines) <= set(head.split(b"\r\n"))
    wanted = request_.get("method") != "GET" and "content-type" not in request_.get("headers", {})
    assert (b"content-type" in head) == wanted


def test_an_answer_may_come_before_the_body_is_read() -> None:
    """A server that refuses a long body closes at once; the client still hears why."""

    def early() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
            connection.shutdown(socket.SHUT_WR)
            until_s = time.monotonic() + 5
            while connection.recv(1 << 20) and time.monotonic() < until_s:
                pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=early, daemon=True)
        thread.start()
        request = msgspec.convert({"raw": [{"repeat": ["a", 20_000_000]}]}, Request)
        call = Call(Address("127.0.0.1", server.getsockname()[1]), request, 5)
        answer = call.answer()
        call.close()
        thread.join(5)
    assert (answer.status, answer.body) == (413, b"no")


@pytest.mark.parametrize(
    ("url", "address", "before_v1", "asked"),
    [
        ("http://127.0.0.1:11435", Address("127.0.0.1", 11435), "", "/v1/models"),
        ("http://127.0.0.1:11435/v1/", Address("127.0.0.1", 11435, path="/v1"), "", "/v1/models"),
        ("https://host/api/v1", Address("host", 443, secure=True, path="/api/v1"), "/api", "/api/v1/models"),
        ("https://host/api/v3", Address("host", 443, secure=True, path="/api/v3"), "/api/v3", "/api/v3/models"),
    ],
)
def test_an_address_is_read_with_or_without_v1(url: str, address: Address, before_v1: str, asked: str) -> None:
    assert read_address(url) == address
    assert address.prefix == before_v1
    assert read_target(url, 5).path("models") == asked


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://host", "http://", "http://host:port"])
def test_an_address_that_is_none_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="is no http address"):
        read_address(url)


def test_nobody_there_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NoAnswer, match="cannot be sent"):
        Call(Address("127.0.0.1", port), Request(), 5)
