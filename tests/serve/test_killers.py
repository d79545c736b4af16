"""What made another server fail, line by line of a list of 23: each over a real socket to a real process, and after
each the same process answers a control request.

The list was found by running mlx_lm.server 0.32.2: nine of these ended its generation thread or the process.

Thread: any
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.serve.process import ROOT, Process
from tests.serve.stage import PATH, REPLIES, Raw, body, eventually, write_script

pytestmark = pytest.mark.wire

TEXT = "/v1/completions"
WINDOW = 512
HELLOS = {"when": "hellos", "tokens": ["hello"], "then": "repeat"}


@dataclass
class Target:
    """A running server."""

    process: Process
    port: int
    client: httpx2.Client

    def post(self, said: dict[str, Any], path: str = PATH) -> httpx2.Response:
        return self.client.post(path, json=said)

    def raw(self) -> Raw:
        return Raw(self.port)

    def figure(self, name: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name} ") or f"{name}{{" in line)

    def control(self) -> None:
        """It is there and makes tokens."""
        answer = self.post(body("control", max_tokens=1, seed=7, temperature=1))
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] <= 1
        assert self.client.get("/health").status_code == 200
        assert self.process.process.poll() is None


def running(home: Path, *arguments: str, **environment: str) -> Iterator[Target]:
    with Process(home, "--port", "0", *arguments, **environment) as process:
        port = process.port()
        with process.client(port) as client:
            yield Target(process, port, client)
            assert process.signal(signal.SIGTERM).ended() == 0
    assert "Traceback" not in process.talk()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A tiny random network: what kills is in the numbers, so a script would not do."""
    model = str(ROOT / "fixtures/models/llama")
    yield from running(tmp_path_factory.mktemp("home"), "--model", model, "--context", str(WINDOW))


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A scripted model, for what must happen at a certain token."""
    home = tmp_path_factory.mktemp("home")
    path = write_script(home, [HELLOS, *REPLIES])
    yield from running(home, "--model", f"script:{path}", "--max-rows", "1", "--max-pending", "1")


@pytest.fixture(autouse=True)
def _control(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in ("network", "script"):
        if name in request.fixturenames:
            request.getfixturevalue(name).control()


def refused(answer: httpx2.Response, status: int = 400) -> dict[str, Any]:
    """The four fields of an envelope."""
    error: dict[str, Any] = answer.json()["error"]
    assert answer.status_code == status, error
    assert sorted(error) == ["code", "message", "param", "type"]
    return error


def test_01_a_list_of_prompts_is_a_choice_for_each(network: Target) -> None:
    choices = network.post({"prompt": ["a", "b"], "max_tokens": 2}, TEXT).json()["choices"]
    assert [one["index"] for one in choices] == [0, 1]


def test_02_an_empty_prompt_is_refused_or_begins_a_text(network: Target) -> None:
    answer = network.post({"prompt": "", "max_tokens": 2}, TEXT)
    if answer.status_code != 200:
        assert refused(answer)["param"] == "prompt"
    answer = network.post({"prompt": [], "max_tokens": 2}, TEXT)
    assert answer.status_code in (200, 400)


@pytest.mark.parametrize("stop", [[1, 2], 1, {"a": 1}, [None], [["a"]], True])
def test_03_a_stop_that_is_no_text_is_refused(network: Target, stop: Any) -> None:
    assert refused(network.post(body(stop=stop)))["param"].startswith("stop")


@pytest.mark.parametrize("top_k", [10**2, 10**4, 10**6, 2**31, 2**63])
def test_04_a_top_k_over_the_vocabulary_keeps_all_of_it(network: Target, top_k: int) -> None:
    answer = network.post(body(temperature=1, top_k=top_k, max_tokens=2))
    assert answer.status_code in (200, 400)
    assert answer.status_code == 200 or refused(answer)["param"] == "top_k"
    assert answer.status_code == 200 or top_k > 10**6


def test_05_a_threshold_out_of_range_is_refused(network: Target) -> None:
    assert refused(network.post(body(xtc_probability=0.5, xtc_threshold=0.9)))["param"].startswith("xtc_")


@pytest.mark.parametrize("token_id", ["100000", "999999999", "-1", "4294967296", "18446744073709551616", "a"])
def test_06_a_logit_bias_outside_the_vocabulary_is_refused(network: Target, token_id: str) -> None:
    """SIGSEGV of the process."""
    assert refused(network.post(body(logit_bias={token_id: 5})))["param"].startswith("logit_bias")


def test_07_a_body_that_is_not_utf_8_and_a_negative_length_are_answered(network: Target) -> None:
    for content in (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', b"\xff", b"\x00" * 9, b"\xed\xa0\x80"):
        refused(network.client.post(PATH, content=content))
    with network.raw() as raw:
        told = raw.send(f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n".encode()).rest()
    assert told.startswith(b"HTTP/1.1 400 ") and sorted(json.loads(told.split(b"\r\n\r\n")[1])["error"]) == [
        "code",
        "message",
        "param",
        "type",
    ]


@pytest.mark.parametrize("options", [{}, None, {"include_usage": None}])
def test_08_stream_options_without_options_are_the_defaults(network: Target, options: Any) -> None:
    told = network.post(body(stream=True, stream_options=options, max_tokens=2)).text
    assert told.endswith("data: [DONE]\n\n") and '"usage":{' not in told


def test_09_three_choices_are_three(network: Target) -> None:
    answer = network.post(body(n=3, temperature=1, seed=1, max_tokens=4)).json()
    assert [one["index"] for one in answer["choices"]] == [0, 1, 2]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["x"]}}}},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tools": [TOOL], "parallel_tool_calls": False},
        {"reasoning_effort": "low"},
        {"reasoning_effort": "loud"},
    ],
)
def test_10_what_changes_the_text_is_honoured_or_refused_by_name(network: Target, fields: dict[str, Any]) -> None:
    answer = network.post(body(max_tokens=200, temperature=0, **fields))
    if answer.status_code == 400:
        assert refused(answer)["param"].split(".")[0] in fields
        return
    (choice,) = answer.json()["choices"]
    if "json_schema" in str(fields):
        assert json.loads(choice["message"]["content"]) == "x"
    elif "response_format" in fields and choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    elif "tool_choice" in fields:
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"


@pytest.mark.parametrize(
    "name", ["temperature", "max_tokens", "top_p", "top_k", "seed", "stop", "n", "stream", "tools"]
)
def test_11_null_is_the_default(network: Target, name: str) -> None:
    said = body(max_tokens=2, **{}) if name != "max_tokens" else body(stop=["e"])
    assert network.post({**said, name: None}).status_code == 200


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"messages": [{"role": "wizard", "content": "x"}]}, 400),
        ({"messages": []}, 400),
        ({}, 400),
        ({"messages": "x"}, 400),
        ({"messages": [{"role": "user", "content": "x"}], "model": "org/other"}, 404),
        ({"messages": [{"role": "tool", "content": "x"}], "tools": "f"}, 400),
    ],
    ids=["role", "empty", "absent", "no list", "model", "tools"],
)
def test_12_what_is_wrong_has_its_status_and_four_fields(network: Target, said: dict[str, Any], status: int) -> None:
    refused(network.post(said), status)


@pytest.mark.parametrize("arguments", ["{not json", "", "[" * 50_000, "1" * 5000, "\u0000"])
def test_12_arguments_in_a_history_that_are_no_json_stay_a_text(network: Target, arguments: str) -> None:
    """A model wrote them, so refusing them would end the conversation (report 45)."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    history = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "y"}]
    answer = network.post({"messages": [{"role": "user", "content": "x"}, *history], "max_tokens": 2})
    assert answer.status_code == 200 or refused(answer)["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [True, False])
def test_13_a_prompt_over_the_window_is_refused_before_a_byte_of_a_stream(network: Target, stream: bool) -> None:
    answer = network.post(body("word " * 5 * WINDOW, stream=stream))
    assert refused(answer)["code"] == "context_length_exceeded"


def test_14_an_error_after_the_stream_began_is_an_event(script: Target) -> None:
    told = script.post(body("raise", stream=True)).text
    assert '"content":"one "' in told and 'data: {"error":{' in told
    assert told.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"stop"' not in told


def test_14_the_control_request_is_a_control(script: Target) -> None:
    """What is asked after each line would notice a server that is gone."""
    with pytest.raises((AssertionError, httpx2.HTTPError)), httpx2.Client(base_url="http://127.0.0.1:9") as nobody:
        Target(script.process, 9, nobody).control()


def test_15_an_error_in_a_seeded_request_is_500(script: Target) -> None:
    refused(script.post(body("raise", seed=1, temperature=1)), 500)


def test_16_a_client_that_leaves_a_plain_reply_stops_it(script: Target) -> None:
    """A job of 6,000 tokens blocked the next seeded request for 17.3 s."""
    before = script.figure('lattice_replies_total{reason="cancelled"}')
    with script.raw() as raw:
        raw.post(body("tick", max_tokens=4000))
        eventually(lambda: script.figure("lattice_rows") == 1)
    script.control()  # the reply would go on for 80 s, in the only row
    eventually(lambda: script.figure('lattice_replies_total{reason="cancelled"}') == before + 1)


def test_17_a_client_that_leaves_a_stream_costs_one_quiet_line(script: Target) -> None:
    for leave in (Raw.close, Raw.reset):
        raw = script.raw().post(body("tick", stream=True, max_tokens=4000))
        raw.until(b'"content":"tick "')
        leave(raw)
        script.control()
    assert "Traceback" not in script.process.talk()


@pytest.mark.parametrize("stream", [True, False])
def test_18_a_stop_string_across_tokens_is_cut_exactly(script: Target, stream: bool) -> None:
    """`elloh` on `hellohello...` gave `hello`, `length`, 8 tokens."""
    answer = script.post(body("hellos", stop="elloh", max_tokens=8, stream=stream))
    if not stream:
        (choice,) = answer.json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("h", "stop")
        return
    chunks = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")]
    assert "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks) == "h"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_19_the_url_of_an_image_is_not_fetched(network: Target) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        url = f"http://127.0.0.1:{trap.getsockname()[1]}/a.png"
        for named in (url, f"file://{__file__}", "data:image/png;base64,AAAA"):
            part = {"type": "image_url", "image_url": {"url": named}}
            answer = network.post({"messages": [{"role": "user", "content": [part]}]})
            assert refused(answer)["code"] == "unsupported_feature"
        trap.settimeout(0.2)
        with pytest.raises(TimeoutError):
            trap.accept()


@pytest.mark.parametrize("length", ["17000000", "1000000000000", "9" * 30, "9" * 5000])
def test_20_a_huge_length_is_413_and_read_by_nobody(network: Target, length: str) -> None:
    before = resident_bytes(network)
    with network.raw() as raw:
        head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n".encode()
        told = raw.send(head + b"{" * 65536).rest()
    status = b"413" if len(length) < 100 else b"4"  # so long a number is no number: 400
    assert told.startswith(b"HTTP/1.1 " + status)
    assert b'"error"' in told
    assert resident_bytes(network) - before < 50 << 20


def resident_bytes(target: Target) -> int:
    if not Path("/proc/self/statm").exists():
        return 0
    pages = int(Path(f"/proc/{target.process.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_21_sigterm_lets_a_running_reply_end(tmp_path: Path) -> None:
    path = write_script(tmp_path, REPLIES)
    with Process(tmp_path, "--model", f"script:{path}", "--port", "0") as process:
        with process.raw(process.port()) as raw:
            raw.post(body("tick", stream=True, max_tokens=30)).until(b'"content":"tick "')
            process.signal(signal.SIGTERM)
            assert raw.rest().count(b'"content":"tick "') == 30
        assert process.ended() == 0


def test_22_many_clients_are_answered_or_refused(script: Target) -> None:
    """One thread each and an endless queue; here 429 with Retry-After, and nobody is forgotten."""

    def ask(number: int) -> tuple[int, str | None]:
        with httpx2.Client(base_url=f"http://127.0.0.1:{script.port}", timeout=30) as client:
            answer = client.post(PATH, json=body("tick", max_tokens=2))
            return answer.status_code, answer.headers.get("retry-after")

    with ThreadPoolExecutor(40) as pool:
        seen = list(pool.map(ask, range(40)))
    assert {status for status, _ in seen} == {200, 429}
    assert {retry for status, retry in seen if status == 429} == {"1"}


def test_23_no_key_and_a_wrong_key_are_401(tmp_path: Path) -> None:
    path = write_script(tmp_path, REPLIES)
    with Process(tmp_path, "--model", f"script:{path}", "--port", "0", LATTICE_API_KEY="right") as process:
        with process.client(process.port()) as client:
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                refused(client.post(PATH, json=body(), headers=headers), 401)
            right = {"Authorization": "Bearer right"}
            assert client.post(PATH, json=body(), headers=right).status_code == 200
        assert process.signal(signal.SIGTERM).ended() == 0
