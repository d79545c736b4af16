"""`lattice serve` as a process: how it begins, what it says, how it ends.

Thread: any
"""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.serve.process import ROOT, Process
from tests.serve.stage import LIMIT_S, PATH, REPLIES, Raw, body, eventually, write_script

pytestmark = pytest.mark.wire

BOTH = [signal.SIGINT, signal.SIGTERM]
# The first repeat of each is in every run; twenty of twenty in the slow one.
TIMES = [pytest.param(time, marks=[pytest.mark.slow] if time >= 2 else []) for time in range(20)]


@pytest.fixture
def script(tmp_path: Path) -> str:
    return f"script:{write_script(tmp_path, REPLIES)}"


def serve(home: Path, script: str, *arguments: str, **environment: str) -> Process:
    return Process(home, "--model", script, "--port", "0", *arguments, **environment)


# Ends.


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("number", BOTH, ids=lambda number: number.name)
def test_a_signal_ends_it_with_status_0(tmp_path: Path, script: str, number: signal.Signals, time: int) -> None:
    """Report 81; a thread that had used MLX aborted the process in 31 of 36 runs."""
    with serve(tmp_path, script) as process:
        port = process.port()
        with process.client(port) as client:
            assert client.post(PATH, json=body()).status_code == 200
        assert process.signal(number).ended() == 0
        assert process.talk() == f"serving `echo` on http://127.0.0.1:{port}/v1 (Ctrl-C ends it)\n"


def test_running_replies_may_finish(tmp_path: Path, script: str) -> None:
    """Report 81: drains for a bounded time; new requests are refused meanwhile."""
    with serve(tmp_path, script, "--drain-seconds", "20") as process:
        port = process.port()
        with process.raw(port) as running, process.client(port) as client:
            running.post(body("tick", stream=True, max_tokens=60)).until(b'"content":"tick "')
            process.signal(signal.SIGTERM)
            eventually(lambda: client.get("/health").status_code == 503)
            assert client.get("/health").json() == {"status": "draining"}
            refused = client.post(PATH, json=body())
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
            told = running.rest()
        assert told.count(b'"content":"tick "') == 60
        assert b'"finish_reason":"length"' in told
        assert told.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert process.ended() == 0


@pytest.mark.parametrize("number", BOTH, ids=lambda number: number.name)
def test_replies_that_do_not_finish_are_ended_with_an_error(
    tmp_path: Path, script: str, number: signal.Signals
) -> None:
    """Report 81: Ctrl-C waited for open streams for ever. `--drain-s` is the option's older name."""
    option = "--drain-s" if number is signal.SIGINT else "--drain-seconds"
    with serve(tmp_path, script, option, "0.2", "--max-rows", "1") as process:
        port = process.port()
        with process.raw(port) as running, process.raw(port) as queued:
            running.post(body("hang", stream=True)).until(b'"content":"a"')
            queued.post(body())
            process.signal(number)
            told, refused = running.rest(), queued.rest()
            assert process.ended() == 0
    assert b'data: {"error":{"message":"the server is shutting down"' in told
    assert told.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert b'"finish_reason":"stop"' not in told
    assert refused.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")


def test_a_server_that_leaves_says_so_on_every_connection(tmp_path: Path, script: str) -> None:
    """503 with Retry-After, and no connection is kept for a next request, in HTTP/1.0 either."""
    with serve(tmp_path, script) as process:
        port = process.port()
        with process.raw(port) as running, process.raw(port) as kept, process.client(port) as client:
            kept.send(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").until(b'{"status": "ok"}')
            assert b"Connection: close" not in kept.heard
            running.post(body("tick", stream=True, max_tokens=100)).until(b'"content":"tick "')
            process.signal(signal.SIGTERM)
            eventually(lambda: client.get("/health").status_code == 503)
            told = kept.post(body()).rest()
            assert told.count(b"HTTP/1.1 ") == 2
            assert b"\r\nConnection: close\r\n" in told and b"\r\nRetry-After: 2\r\n" in told
            with process.raw(port) as old:
                old.send(b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
                assert old.rest().count(b"Connection: ") == 1
                assert b"Connection: close" in old.heard
            assert running.rest().count(b'"content":"tick "') == 100
        assert process.ended() == 0


def test_ctrl_c_waits_for_three_seconds_at_most(tmp_path: Path, script: str) -> None:
    """Report 81: somebody sits there and waits."""
    with serve(tmp_path, script, "--drain-seconds", "60") as process:
        port = process.port()
        with process.raw(port) as running:
            running.post(body("hang", stream=True)).until(b'"content":"a"')
            began_s = time.monotonic()
            process.signal(signal.SIGINT)
            told = running.rest()
            assert process.ended() == 0
            assert 2.5 < time.monotonic() - began_s < 30
    assert b'data: {"error":{"message":"the server is shutting down"' in told


def test_a_second_signal_ends_it_at_once(tmp_path: Path, script: str) -> None:
    """Report 81."""
    with serve(tmp_path, script, "--drain-seconds", "60") as process:
        port = process.port()
        with process.raw(port) as running, process.client(port) as client:
            running.post(body("hang", stream=True)).until(b'"content":"a"')
            process.signal(signal.SIGINT)
            eventually(lambda: client.get("/health").status_code == 503)
            assert process.signal(signal.SIGINT).ended() == 130  # and 0 where the first one ended it
        assert "Traceback" not in process.talk()


# Begins.


class StalledHub:
    """Accepts connections and never answers: a download that hangs, so a load that does not end."""

    def __enter__(self) -> StalledHub:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def free_port() -> int:
    """From below those that a system gives to whoever asks for any, so that nobody else has it a moment later."""
    for port in random.sample(range(12000, 30000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("there is no free port")


@pytest.mark.parametrize("number", BOTH, ids=lambda number: number.name)
def test_while_it_loads_it_answers_and_can_be_ended(tmp_path: Path, number: signal.Signals) -> None:
    """Reports 81 and 97: health tells that the model is loading; a signal ends the process in that time too."""
    port = free_port()
    with (
        StalledHub() as hub,
        Process(tmp_path, "--model", "org/stalled", "--port", str(port), HF_ENDPOINT=hub.url) as process,
    ):
        eventually(lambda: _answers(port), 60)
        with process.client(port) as client:
            health = client.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": "loading"})
            answer = client.post(PATH, json=body())
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
            assert answer.json()["error"]["message"] == "the model is still loading"
        assert process.signal(number).ended() == 0
        assert "Traceback" not in process.talk()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _health(port: int) -> bytes:
    with Raw(port) as client:
        return client.send(b"GET /health HTTP/1.0\r\n\r\n").rest()


def test_a_taken_port_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Process(tmp_path, "--model", "script:/nowhere.json", "--port", str(port)) as process:
            assert process.ended(60) == 1
    assert process.talk() == (
        f"error: cannot listen on 127.0.0.1 port {port}: Address already in use\n"
        "\nhint: choose another with `--port`, or `--port 0` for a free one\n"
    )


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("script:/nowhere.json", "error: no scripted model `script:/nowhere.json`: `/nowhere.json` is not a file\n"),
        ("/nowhere", "error: `/nowhere` does not exist\n"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_one_sentence_and_status_3(tmp_path: Path, model: str, sentence: str) -> None:
    """Report 117 and section O: no traceback."""
    with Process(tmp_path, "--model", model, "--port", "0") as process:
        assert process.ended(60) == 3
        assert process.silent()
    assert process.talk().startswith(sentence)


def test_a_malformed_script_is_one_sentence_and_status_3(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"replies": [{"tokens": [7]}]}')
    with serve(tmp_path, f"script:{path}") as process:
        assert process.ended(60) == 3
    assert process.talk() == (
        f"error: the script `{path}` is malformed: Expected `str | object`, got `int` - at `$.replies[0].tokens[0]`\n"
    )


USAGE = [
    (["--port", "70000"], {}),
    (["--port", "x"], {}),
    ([], {"LATTICE_SERVE_PORT": "x"}),
    ([], {"LATTICE_SERVE_PORT": "-1"}),
    (["--temperature", "2.1"], {}),
    (["--temperature", "nan"], {}),
    (["--top-k", "-1"], {}),
    (["--top-p", "0"], {}),
    (["--top-p", "nan"], {}),
    (["--repetition-penalty", "0"], {}),
    (["--repetition-penalty", "inf"], {}),
    (["--max-tokens", "0"], {}),
    (["--max-rows", "0"], {}),
    (["--max-pending", "-1"], {}),
    (["--prefill-chunk", "0"], {}),
    (["--max-body", "0"], {}),
    (["--context", "0"], {}),
    (["--drain-seconds", "inf"], {}),
    (["--drain-s", "nan"], {}),
    (["--log-level", "loud"], {}),
    (["--log-format", "xml"], {}),
    (["--tokenizer-dir", "/nowhere"], {}),
    (["--no-such-flag"], {}),
]


def test_a_value_that_cannot_be_used_is_a_usage_error(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seeds fall back to a default in silence."""
    from lattice_cli.cli import run

    for arguments, environment in USAGE:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            assert run(["serve", "--model", script, *arguments]) == 2, arguments or environment


def test_the_environment_names_port_and_model(tmp_path: Path, script: str) -> None:
    port = free_port()
    with Process(tmp_path, LATTICE_SERVE_MODEL=script, LATTICE_SERVE_PORT=str(port)) as process:
        assert process.port() == port
        with process.client(port) as client:
            assert client.get("/v1/models").json()["data"][0]["id"] == "echo"
        assert process.signal(signal.SIGTERM).ended() == 0


def test_context_lowers_the_window(tmp_path: Path, script: str) -> None:
    with serve(tmp_path, script, "--context", "60") as process:
        port = process.port()
        with process.client(port) as client:
            assert client.post(PATH, json=body()).status_code == 200
            assert client.post(PATH, json=body("a longer text")).json()["error"]["code"] == "context_length_exceeded"
        process.signal(signal.SIGTERM)


# Works.


def test_the_openai_client_talks_to_the_process_and_each_request_has_a_line(tmp_path: Path, script: str) -> None:
    with serve(tmp_path, script) as process:
        port = process.port()
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0) as client:
            (model,) = client.models.list()
            lines = [process.line()]  # each before the next request: a stream's is said after its end
            said: list[Any] = [{"role": "user", "content": "hi"}]
            whole = client.chat.completions.create(model=model.id, messages=said)
            lines.append(process.line())
            with client.chat.completions.create(model=model.id, messages=said, stream=True) as stream:
                text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            lines.append(process.line())
            with pytest.raises(openai.NotFoundError):
                client.chat.completions.create(model="other", messages=said)
        assert whole.choices[0].message.content == text == "hello world"
        lines.append(process.line())
        for line in lines:
            assert line.pop("dur_ms") >= 0
        post = {"ev": "http_request", "method": "POST", "route": PATH}
        assert lines == [
            {**post, "method": "GET", "route": "/v1/models", "status": 200, "tokens": None, "stream": False},
            {**post, "status": 200, "tokens": 3, "stream": False},
            {**post, "status": 200, "tokens": 3, "stream": True},
            {**post, "status": 404, "tokens": None, "stream": False},
        ]
        assert process.signal(signal.SIGTERM).ended() == 0
        assert process.silent()


def test_a_stdout_that_nobody_reads_is_no_fault(script: str) -> None:
    """The reader of our lines may go away, as in `lattice serve | head -1`."""
    command = [sys.executable, "-m", "lattice_cli", "serve", "--model", script, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, bufsize=0) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline().removeprefix(b"@@lattice "))["port"]
        process.stdout.close()
        for _ in range(5):
            with Raw(port) as client:
                assert b"hello world" in client.post(body()).until(b"hello world")
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


def test_without_a_stdout_it_serves_too(tmp_path: Path, script: str) -> None:
    """`lattice serve >&-`: the first socket must not be taken for stdout."""
    port = free_port()
    command = f"exec {sys.executable} -m lattice_cli serve --model {script} --port {port} >&- 2>&-"
    with subprocess.Popen(["sh", "-c", command], cwd=ROOT) as process:
        eventually(lambda: _answers(port), 60)
        eventually(lambda: b" 200 OK" in _health(port))
        with Raw(port) as client:
            assert b"hello world" in client.post(body()).until(b"hello world")
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


def test_killed_clients_do_not_hurt_the_process(tmp_path: Path, script: str) -> None:
    """Report 74, with the process as its user sees it."""
    with serve(tmp_path, script, "--max-rows", "1", "--max-pending", "1", "--log-level", "info") as process:
        port = process.port()
        for _ in range(20):
            client = process.raw(port).post(body("tick", stream=True))
            client.until(b'"content":"tick "')
            client.reset()
        with process.client(port) as client_:
            assert client_.post(PATH, json=body()).json()["choices"][0]["message"]["content"] == "hello world"
        assert process.signal(signal.SIGTERM).ended() == 0
    talk = process.talk()
    assert talk.count("the client left") == 20
    assert "Traceback" not in talk


# Breaks.


def test_a_broken_engine_ends_the_process_only_when_asked(tmp_path: Path) -> None:
    for arguments, ends in (([], False), (["--exit-on-broken"], True)):
        with Process(tmp_path, *arguments, module="tests.serve.broken_server") as process:
            port = process.port()
            with process.client(port) as client, ThreadPoolExecutor(3) as pool:
                seen = {one.status_code for one in pool.map(lambda _: client.post(PATH, json=body()), range(3))}
                assert seen <= {500, 503}
                if not ends:
                    eventually(lambda: client.get("/health").json() == {"status": "broken"})
                    process.signal(signal.SIGTERM)
            assert process.ended() == (1 if ends else 0)
            assert ("error: " in process.talk()) is ends
