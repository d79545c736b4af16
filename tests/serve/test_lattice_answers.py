"""Golden bytes of lattice_serve's answers and failures.

Thread: any
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from lattice_cli.engine.completion import Completion
from lattice_cli.errors import (
    BadRequest,
    BodyTooLarge,
    EngineFault,
    EngineLost,
    EngineUnavailable,
    LatticeError,
    NoSuchRoute,
    Overloaded,
)
from lattice_cli.events import Finished, FinishReason, Piece, Timing, Usage
from lattice_cli.job import Channel
from lattice_cli.serve.sse import encode
from lattice_cli.serve.wire import Ask
from lattice_cli.serve.wire import lattice_050 as v050
from lattice_cli.serve.wire import lattice_061 as v061
from lattice_cli.serve.wire.lattice_answers import LatticeVoice

pytestmark = pytest.mark.pure

NS = 1_700_000_000_123_456_789
TAIL = b'],"created":1700000000,"id":"chatcmpl-1700000000123456789","model":"a/\\u00e9","object":"chat.completion'
ASK = Ask(turns=())


def voice() -> LatticeVoice:
    return LatticeVoice("a/é", lambda reason: reason, NS)


def finished(reason: FinishReason = "stop") -> Finished:
    return Finished("j", reason, Usage(prompt_tokens=7, completion_tokens=2, cached_tokens=3), Timing())


def frame(delta: bytes, reason: bytes = b"null") -> bytes:
    return b'data: {"choices":[{"delta":%b,"finish_reason":%b,"index":0}%b.chunk"}\n\n' % (delta, reason, TAIL)


def test_a_stream_from_its_role_to_done() -> None:
    said = voice()
    piece = Piece("j", Channel.ANSWER, '"\u2028')
    stream = [*said.begin(), *said.open(0), *said.chunk(0, piece), *said.close(0, finished("length"))]
    assert encode([*stream, *said.end([finished()])]) == (
        frame(b'{"role":"assistant"}') + frame(b'{"content":"\\"\\u2028"}') + frame(b"{}", b'"length"')
        + b"data: [DONE]\n\n"
    )  # fmt: skip


def test_a_failure_inside_a_stream_looks_like_a_success() -> None:
    """Their issue 933."""
    assert encode(voice().fault(EngineFault("secret"))) == frame(b"{}", b'"stop"') + b"data: [DONE]\n\n"


def test_a_whole_answer() -> None:
    one = Completion("j")
    for event in (Piece("j", Channel.ANSWER, "<think>"), Piece("j", Channel.ANSWER, "é"), finished()):
        one.add(event)
    assert voice().whole([one]) == (
        b'{"choices":[{"finish_reason":"stop","index":0,"message":{"content":"<think>\\u00e9","role":"assistant"}}%b",'
        b'"usage":{"completion_tokens":2,"prompt_tokens":7,"total_tokens":9}}' % TAIL
    )


@pytest.mark.parametrize("reason", ["stop", "length", "cancelled"])
def test_the_end_is_named_as_each_version_names_it(reason: FinishReason) -> None:
    """chat_completions_{streaming,non_streaming}_finish_reason_*"""

    def ends(dialect: Any) -> Any:
        (chunk,) = dialect.voice(ASK, "m").close(0, finished(reason))
        return json.loads(chunk.data)["choices"][0]["finish_reason"]

    assert ends(v061.ChatDialect()) == ("stop" if reason == "stop" else "length")
    assert ends(v050.ChatDialect()) == "stop"


def test_an_id_is_the_time_of_birth_in_nanoseconds() -> None:
    before = time.time_ns()
    (chunk,) = v061.ChatDialect().voice(ASK, "m").begin()
    said = json.loads(chunk.data)
    born = int(said["id"].removeprefix("chatcmpl-"))
    assert before <= born <= time.time_ns()
    assert said["created"] == born // 10**9


FAILURES: list[tuple[LatticeError, int, str, str, str]] = [
    (BadRequest('a "b"', code="c"), 400, "invalid_request_error", "c", 'a "b"'),
    (BodyTooLarge("too long"), 413, "invalid_request_error", "request_body_too_large", "too long"),
    (NoSuchRoute("none", hint="others"), 404, "invalid_request_error", "not_found", "none (hint: others)"),
    (EngineFault("secret"), 500, "server_error", "internal_error", "inference failed"),
    (EngineLost("secret"), 500, "server_error", "internal_error", "inference worker unavailable"),
    (EngineUnavailable("loading"), 503, "server_error", "engine_unavailable", "loading"),
    (Overloaded("full"), 503, "server_error", "server_busy", "full"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure[0]).__name__)
def test_a_failure_has_the_envelope_of_its_version(failure: tuple[LatticeError, int, str, str, str]) -> None:
    error, status, kind, code, message = failure
    four = b'{"error":{"message":%b,"type":"%b","code":"%b","param":null}}' % (
        json.dumps(message).encode(), kind.encode(), code.encode(),
    )  # fmt: skip
    two = b'{"error":{"message":%b,"type":"invalid_request_error"}}' % json.dumps(message).encode()
    assert v061.Lattice061().refusal(error) == (status, "application/json", four)
    assert v050.Lattice050().refusal(error) == (status, "application/json", two)


@pytest.mark.parametrize("wire", [v050.Lattice050(), v061.Lattice061()], ids=["0.5.0", "0.6.1"])
def test_the_pages_of_both(wire: v050.Lattice050 | v061.Lattice061) -> None:
    ok = (200, "text/plain; charset=utf-8", b"ok")
    assert [wire.health(state, ready=state == "ready") for state in ("ready", "draining", "broken")] == [ok] * 3
    assert wire.health("loading", ready=False) == (503, "application/json", b'{"status":"loading"}')
    assert wire.root(["/a", "/b"]).body == b'{"endpoints":["/a","/b"],"name":"lattice","object":"engine"}'
    before, models, after = time.time(), json.loads(wire.models("m", 5).body), time.time()
    (entry,) = models.pop("data")
    assert (models, list(entry)) == ({"object": "list"}, ["created", "id", "object", "owned_by"])
    assert int(before) <= entry["created"] <= after
    assert (entry["id"], entry["object"], entry["owned_by"]) == ("m", "model", "lattice")


def test_a_body_over_the_limit_is_told_in_bytes() -> None:
    wire = v061.Lattice061()
    error = json.loads(wire.refusal(wire.too_large(1 << 20)).body)["error"]
    assert (error["message"], error["code"]) == ("request body exceeds 1048576 bytes", "request_body_too_large")
