"""Measuring a server as its clients see it, against a stub on a real socket that sends exactly what a test says.

Thread: any
"""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.bench.crowd import Goal, Pace, run_pace
from lattice_cli.bench.load import Question, ask, first_model, read_target
from lattice_cli.bench.load_command import warmed
from lattice_cli.bench.questions import Source, read_dataset
from lattice_cli.bench.reading import Answer, Miss
from lattice_cli.bench.strain import run_strain
from lattice_cli.errors import BenchError, UsageError
from tests.bench.clock import VirtualClock
from tests.bench.stub import Reply, finish, refuse, serving, stream, text, usage

pytestmark = pytest.mark.wire

QUESTION = Question("m", (("system", "1 is your number."), ("user", "Count.")), max_tokens=9)


def outcome(reply: Reply, timeout_s: float = 5) -> Answer | Miss:
    with serving(reply) as stub:
        return ask(read_target(stub.url, timeout_s), QUESTION)


def test_an_event_cut_anywhere_between_packets_is_read_whole() -> None:
    frames = "".join(f"data: {json.dumps(frame)}\n\n" for frame in (text("é"), finish("stop"), usage(3, 2)))
    answer = outcome(stream(*frames))  # one write a character
    assert isinstance(answer, Answer)
    assert (answer.completion_tokens, answer.finish_reason) == (2, "stop")


@pytest.mark.parametrize(
    ("reply", "miss"),
    [
        (stream(text("a"), done=False), Miss("the stream ended before the reply did (no finish_reason)", "cut short")),
        (stream("data: {\n\n"), Miss("the stream is not OpenAI's: Input data was truncated", "malformed")),
        (refuse(503, '{"error": {"message": "loading", "code": 1}}'), Miss("HTTP 503: loading", "HTTP 503")),
        (refuse(500, "Internal Server Error"), Miss("HTTP 500: Internal Server Error", "HTTP 500")),
        (refuse(404, ""), Miss("HTTP 404: no body", "HTTP 404")),
    ],
)
def test_a_reply_that_does_not_hold_is_a_failure_with_its_reason(reply: Reply, miss: Miss) -> None:
    """Report 137: empty replies, errors and early ends of text counted as successes."""
    assert outcome(reply) == miss


def test_a_silent_server_is_given_up_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = read_target(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.05)
        assert ask(target, QUESTION) == Miss("nothing came for 0.05 s", "timeout")


def test_a_server_that_is_not_there_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert ask(read_target(f"http://127.0.0.1:{port}", 5), QUESTION) == Miss(
        "the connection failed: Connection refused", "connection"
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


# Crowds.


def by_words(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
    """A server whose template takes 25 tokens and whose tokenizer takes two for three words."""
    words = len(body["messages"][1]["content"].split("\n")[0].split())
    stream(text("a"), text("b"), finish(), usage(25 + words * 2 // 3, 2))(handler, body)


SOURCE = Source("m", 8, 256)


def test_prompts_have_the_asked_length_by_the_servers_own_count() -> None:
    with serving(by_words) as stub:
        target = read_target(stub.url, 5)
        source, asked = warmed(target, SOURCE, 425, 1)
        result = run_pace(target, source, Pace(2, 3), asked)
    assert [answer.prompt_tokens for answer in result.answers] == [425] * 6
    assert result.misses == ()
    openings = [body["messages"][0]["content"] for body in stub.bodies]
    assert sorted(openings) == [f"{number}01 is your number." for number in range(9)]  # no cache knows how they begin


def test_failures_are_kept_apart_from_answers() -> None:
    """Report 137: only what was answered enters the rates."""
    seen: list[int] = []

    def every_second(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        seen.append(1)
        (by_words if len(seen) % 2 else refuse(500, "boom"))(handler, body)

    with serving(every_second) as stub:
        result = run_pace(read_target(stub.url, 5), SOURCE, Pace(1, 6), 0)
    assert (len(result.answers), result.misses) == (3, (Miss("HTTP 500: boom", "HTTP 500"),) * 3)


def test_a_server_that_fails_the_probe_ends_the_run_at_once() -> None:
    with serving(refuse(404, '{"error": {"message": "no model m"}}')) as stub, pytest.raises(BenchError) as caught:
        warmed(read_target(stub.url, 5), SOURCE, 425, 1)
    assert caught.value.message == "the server does not answer: HTTP 404: no model m"
    assert len(stub.bodies) == 1


def test_a_closed_loop_keeps_exactly_its_clients_busy() -> None:
    """Four clients are four requests at once: the stub answers nobody before four have come."""
    together = threading.Barrier(4)

    def waits(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        together.wait(10)
        by_words(handler, body)

    with serving(waits) as stub:
        result = run_pace(read_target(stub.url, 15), SOURCE, Pace(4, 2), 0)
    assert len(result.answers) == 8


def test_random_arrivals_do_not_wait_for_answers_and_come_at_the_rate_that_was_asked() -> None:
    """2,000 arrivals: their number in 100 s has a deviation of 45, so 5 of those are a false alarm in a million."""
    arrivals = list(Pace(1, 1, duration_s=100, rate_s=20).arrivals_s(seed=1))
    assert 1776 < len(arrivals) < 2224
    assert arrivals == sorted(arrivals) and arrivals[-1] <= 100
    assert arrivals == list(Pace(1, 1, duration_s=100, rate_s=20).arrivals_s(seed=1))
    assert len(list(Pace(4, 3, rate_s=20).arrivals_s(seed=1))) == 12
    hold, begun = threading.Event(), threading.Semaphore(0)

    def waits(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        begun.release()
        hold.wait(10)
        by_words(handler, body)

    with serving(waits) as stub:
        clock = VirtualClock()
        pace, found = Pace(2, 3, rate_s=2), list[int]()
        run = threading.Thread(
            target=lambda: found.append(
                len(run_pace(read_target(stub.url, 15), SOURCE, pace, 0, clock, clock.sleep).answers)
            )
        )
        run.start()
        assert all(begun.acquire(timeout=10) for _ in range(6))  # all came though none was answered
        hold.set()
        run.join(10)
    assert found == [6]


def test_goodput_counts_what_kept_to_both_targets() -> None:
    answer = Answer(10, 0, 5, 0.5, 0.9, 1.0, (0.1,) * 4, "length")  # 500 ms, then 100 ms a token
    assert Goal().met(answer)
    assert Goal(500, 100.01).met(answer)
    assert not Goal(499, None).met(answer)
    assert not Goal(None, 99).met(answer)


# Strain.


def test_what_a_cancel_costs_is_seen_where_a_server_does_not_notice() -> None:
    """A server with one slot that goes on with a reply whose client left: the next one waits for its end."""
    slot = threading.Lock()
    finished: list[bool] = []

    def one_by_one(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        with slot:
            if body["max_tokens"] < 10:
                return by_words(handler, body)
            handler.send_response(200)
            handler.end_headers()
            try:
                for _ in range(40):
                    handler.wfile.write(f"data: {json.dumps(text('a'))}\n\n".encode())
                    threading.Event().wait(0.005)
            except OSError:
                finished.append(False)
                threading.Event().wait(0.3)  # what it did not notice
            else:
                finished.append(True)

    with serving(one_by_one) as stub:
        strain = run_strain(read_target(stub.url, 10), SOURCE, 1, 1, 0)
    assert (len(strain.alone_s), len(strain.after_s)) == (1, 1)
    assert finished[:2] == [True, False]  # the short reply waited for the first one; from the second its client left
    assert strain.after_s[0] - strain.alone_s[0] > 0.1


# Data sets.


def test_a_data_set_may_hold_prompts_messages_or_conversations(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"prompt": "a"}\n\n{"messages": [{"role": "user", "content": "b"}]}\n')
    assert read_dataset(lines) == ((("user", "a"),), (("user", "b"),))
    shared = tmp_path / "sharegpt.json"
    shared.write_text(json.dumps([{"conversations": [{"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]}]))
    assert read_dataset(shared) == ((("user", "c"),),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": 1}', "entry 1 has no `prompt`, `messages` or `conversations`"),
        ('{"prompt": "a"}\n{"messages": [{"role": "x", "content": "b"}]}', "entry 2 has a turn without a known `role`"),
        ('{"messages": [{"role": "system", "content": "b"}]}', "entry 1 has no user's turn"),
        ("", "has no prompts"),
        ("{", "cannot be read"),
    ],
)
def test_a_data_set_that_is_none_is_told_with_its_place(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_dataset(file)
