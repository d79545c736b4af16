"""Measuring a server as its clients see it, against a stub that sends exactly what a test says.

Thread: any
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from lattice_cli.bench.crowd import LoadPlan, run_load
from lattice_cli.bench.load import Question, ask, first_model, read_target
from lattice_cli.bench.reading import Answer, Miss
from lattice_cli.errors import BenchError, UsageError
from tests.bench.stub import Reply, finish, refuse, serving, stream, text, usage

pytestmark = pytest.mark.wire

QUESTION = Question("m", "1 is your number.", "Count.", max_tokens=9)


def outcome(reply: Reply, timeout_s: float = 5) -> Answer | Miss:
    with serving(reply) as stub:
        return ask(read_target(stub.url, timeout_s), QUESTION, clock=ticks().__next__)


def ticks() -> Iterator[float]:
    """A clock that goes on by one second at every look."""
    now_s = 0.0
    while True:
        yield now_s
        now_s += 1.0


def test_tokens_are_counted_from_usage_and_not_from_chunks() -> None:
    """Report 135: two chunks that hold nine tokens are nine tokens."""
    frames = (text("one two three"), text(" four"), finish(), usage(20, 9))
    # The clock is read before connecting, at each of the four frames and at the end.
    assert outcome(stream(*frames)) == Answer(
        prompt_tokens=20,
        cached_tokens=0,
        completion_tokens=9,
        first_token_s=1.0,
        last_token_s=2.0,
        total_s=5.0,
        gaps_s=(1.0,),
        finish_reason="length",
    )


def test_rates_leave_the_prompt_out_of_decode_and_cached_tokens_out_of_prefill() -> None:
    """Report 134: one figure for prefill and one for decode, each with its definition."""
    frames = (text("a"), text("b"), finish(), usage(20, 9, cached=12))
    answer = outcome(stream(*frames))
    assert isinstance(answer, Answer)
    assert (answer.prefill_rate, answer.decode_rate, answer.whole_rate) == (8.0, 8.0, 9 / 5)


def test_a_role_chunk_a_comment_and_reasoning_are_told_apart() -> None:
    """The first token is the first text: neither the role chunk nor a keep-alive comment."""
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}]}
    answer = outcome(stream(role, ": still here\n\n", thought, text("x"), finish(), usage(3, 2)))
    assert isinstance(answer, Answer)
    assert (answer.first_token_s, answer.last_token_s) == (2.0, 3.0)


def test_an_event_cut_anywhere_between_packets_is_read_whole() -> None:
    frames = "".join(f"data: {json.dumps(frame)}\n\n" for frame in (text("é"), finish("stop"), usage(3, 2)))
    answer = outcome(stream(*frames))  # one write a character
    assert isinstance(answer, Answer)
    assert (answer.completion_tokens, answer.finish_reason) == (2, "stop")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (stream(finish("stop"), usage(20, 0)), "the reply is empty"),
        (stream(text(""), finish("stop"), usage(20, 3)), "the reply is empty"),
        (stream(text("a"), usage(20, 1)), "the stream ended before the reply did (no finish_reason)"),
        (stream(text("a"), done=False), "the stream ended before the reply did (no finish_reason)"),
        (stream(text("a"), finish()), "the server sends no usage in streams, so its tokens cannot be counted"),
        (stream(text("a"), {"error": {"message": "boom"}}), "an error in the stream: boom"),
        (stream("data: {\n\n"), "the stream is not OpenAI's: Input data was truncated"),
        (refuse(503, '{"error": {"message": "loading", "code": 1}}'), "HTTP 503: loading"),
        (refuse(500, "Internal Server Error"), "HTTP 500: Internal Server Error"),
        (refuse(404, ""), "HTTP 404: no body"),
    ],
)
def test_a_reply_that_does_not_hold_is_a_failure_with_its_reason(reply: Reply, reason: str) -> None:
    """Report 137: empty replies, errors and early ends of text counted as successes."""
    assert outcome(reply) == Miss(reason)


def test_a_silent_server_is_given_up_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = read_target(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.05)
        assert ask(target, QUESTION) == Miss("nothing came for 0.05 s")


def test_a_server_that_is_not_there_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert ask(read_target(f"http://127.0.0.1:{port}", 5), QUESTION) == Miss(
        "the connection failed: Connection refused"
    )


def test_the_request_is_streamed_greedy_and_asks_for_usage() -> None:
    with serving(stream(text("a"), finish(), usage(3, 2))) as stub:
        ask(read_target(f"{stub.url}/v1/", 5, api_key="k"), QUESTION)
        assert first_model(read_target(stub.url, 5)) == "stub/model"
    assert stub.headers[0]["authorization"] == "Bearer k"
    assert stub.bodies == [
        {
            "model": "m",
            "messages": [{"role": "system", "content": "1 is your number."}, {"role": "user", "content": "Count."}],
            "max_tokens": 9,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://host", "http://", "http://host:port"])
def test_an_address_that_is_none_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="is no http address"):
        read_target(url, 5)


def by_words(handler: object, body: dict[str, object]) -> None:
    """A server whose template takes 25 tokens and whose tokenizer takes two for three words."""
    messages = body["messages"]
    assert isinstance(messages, list)
    words = len(messages[1]["content"].split("\n")[0].split())
    stream(text("a"), text("b"), finish(), usage(25 + words * 2 // 3, 2))(handler, body)  # type: ignore[arg-type]


def plan(**changes: int) -> LoadPlan:
    values = {"prompt_tokens": 425, "max_tokens": 8, "clients": 2, "trials": 3, "warmups": 1, "seed": 256} | changes
    return LoadPlan(model="m", **values)


def test_prompts_have_the_asked_length_by_the_servers_own_count() -> None:
    with serving(by_words) as stub:
        result = run_load(read_target(stub.url, 5), plan())
    assert [answer.prompt_tokens for answer in result.answers] == [425] * 6
    assert result.misses == ()


def test_no_two_prompts_of_a_run_begin_alike() -> None:
    """A prompt cache would otherwise answer the later ones: two probes, a warm-up and six that count."""
    with serving(by_words) as stub:
        run_load(read_target(stub.url, 5), plan())
    openings = [body["messages"][0]["content"] for body in stub.bodies]
    assert sorted(openings) == [f"{number}01 is your number." for number in range(9)]


def test_failures_are_kept_apart_from_answers() -> None:
    """Report 137: only what was answered enters the rates."""
    seen: list[int] = []

    def every_second(handler: object, body: dict[str, object]) -> None:
        seen.append(1)
        if len(seen) > 3 and len(seen) % 2:
            return refuse(500, "boom")(handler, body)  # type: ignore[arg-type]
        return by_words(handler, body)

    with serving(every_second) as stub:
        result = run_load(read_target(stub.url, 5), plan(clients=1, trials=6))
    assert (len(result.answers), result.misses) == (3, (Miss("HTTP 500: boom"),) * 3)


def test_a_server_that_fails_the_probe_ends_the_run_at_once() -> None:
    with serving(refuse(404, '{"error": {"message": "no model m"}}')) as stub, pytest.raises(BenchError) as caught:
        run_load(read_target(stub.url, 5), plan())
    assert caught.value.message == "the server does not answer: HTTP 404: no model m"
    assert len(stub.bodies) == 1
