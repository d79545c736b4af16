"""/metrics and the log file of a real server.

Thread: any
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lattice_cli.policy import POLICIES
from lattice_cli.settings import EngineSettings
from tests.serve.process import ROOT, Process
from tests.serve.stage import PATH, REPLIES, Served, body, eventually, served, with_settings, write_script
from tests.tiny import write_json, write_tiny_folder

pytestmark = pytest.mark.wire


def figures(client: httpx2.Client) -> dict[str, float]:
    """Samples of a scrape as `name{label=value}`."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def counted(client: httpx2.Client) -> dict[str, float]:
    """Requests by their labels, without the scrapes."""
    name, scrape = "lattice_http_requests_total{", "method=GET,route=/metrics,status=200"
    found = {key.removeprefix(name)[:-1]: value for key, value in figures(client).items() if key.startswith(name)}
    return {labels: value for labels, value in found.items() if labels != scrape}


def test_requests_tokens_and_times_are_counted() -> None:
    with served() as house, house.client() as client:
        for ask in (body(), body(stream=True), body(temperature=9), body("raise")):
            client.post(PATH, json=ask)
        for path in ("/nowhere", "/.env", "/v1/models", "/v1/models/echo", "/health"):
            client.get(path)
        client.request("BREW", "/")
        with house.raw() as raw:
            raw.send(b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n").rest()
        eventually(house.idle)
        asked = {
            f"method=POST,route={PATH},status=200": 2,
            f"method=POST,route={PATH},status=400": 1,
            f"method=POST,route={PATH},status=500": 1,
            "method=GET,route=other,status=404": 2,
            "method=GET,route=/v1/models,status=200": 1,
            "method=GET,route=/v1/models/{model_id},status=200": 1,
            "method=GET,route=/health,status=200": 1,
            "method=other,route=/,status=400": 1,
            "method=GET,route=other,status=400": 1,
        }
        # A stream and a refusal of the web server are counted after they were said, so a moment later.
        eventually(lambda: sum(counted(client).values()) >= sum(asked.values()))
        eventually(lambda: figures(client)["lattice_inflight_requests"] == 1)  # the scrape itself
        assert counted(client) == asked
        found = figures(client)
        assert found["lattice_replies_total{reason=stop}"] == 2
        assert found["lattice_replies_total{reason=failed}"] == 1
        assert found["lattice_completion_tokens_total"] == 6
        assert found["lattice_first_token_seconds_count"] == 2
        assert found["lattice_inter_token_seconds_count"] >= 2
        assert found["lattice_prompt_tokens_total"] > 0
        assert found["lattice_cached_tokens_total"] >= 0
        assert found["lattice_http_request_duration_seconds_count{route=/health}"] == 1
        assert found["process_open_fds"] > 0 or not Path("/proc/self/fd").exists()


def test_the_prefix_cache_is_counted(tmp_path: Path) -> None:
    """Report 72: that a prompt was known can be seen, here as in `usage`."""
    arguments = ("--model", str(ROOT / "fixtures/models/llama"), "--port", "0", "--cache-bytes", "8M")
    with Process(tmp_path, *arguments) as process:
        with process.client(process.port()) as client:
            said = body("a text that comes again " * 8, max_tokens=1, temperature=0)
            usage = [client.post(PATH, json=said).json()["usage"] for _ in range(2)]
            found = figures(client)
        assert process.signal(signal.SIGTERM).ended() == 0
    cached = usage[1]["prompt_tokens_details"]["cached_tokens"]
    assert usage[0]["prompt_tokens_details"]["cached_tokens"] == 0 < cached < usage[1]["prompt_tokens"]
    assert found["lattice_cached_tokens_total"] == cached
    assert found["lattice_prompt_tokens_total"] == sum(one["prompt_tokens"] for one in usage)
    assert (found["lattice_cache_lookups_total"], found["lattice_cache_hits_total"]) == (2, 1)
    assert 0 < found["lattice_cache_bytes"] <= found["lattice_cache_budget_bytes"] == 8 << 20
    assert found["lattice_cache_entries"] > 0


def test_rows_and_queue_are_told_and_come_back_to_nothing() -> None:
    with served(engine=EngineSettings(max_rows=1, max_pending=2)) as house, house.client() as client:
        assert figures(client)["lattice_engine_state{state=ready}"] == 1
        running = house.raw().post(body("hang", stream=True))
        running.until(b'"content":"a"')
        waiting = house.raw().post(body())
        eventually(lambda: figures(client)["lattice_queue_depth"] == 1)
        found = figures(client)
        assert (found["lattice_rows"], found["lattice_inflight_requests"]) == (1, 3)
        running.close()
        waiting.until(b"hello world")
        waiting.close()
        eventually(house.idle)
        eventually(lambda: figures(client)["lattice_inflight_requests"] == 1)
        found = figures(client)
        assert (found["lattice_rows"], found["lattice_queue_depth"]) == (0, 0)
        assert found["lattice_replies_total{reason=cancelled}"] == 1


def test_a_reply_that_gave_its_slot_back_waits_again(tmp_path: Path) -> None:
    """Two that outgrow the memory together: the newer one was counted as running until its end."""
    folder = write_tiny_folder(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"max_position_embeddings": 4096})
    long = body(stream=True, max_tokens=1700, temperature=0, ignore_eos=True)
    with Process(tmp_path, "--model", str(folder), "--port", "0", "--memory-limit", "2M") as process:
        port = process.port()
        with process.client(port) as client, process.raw(port).post(long) as one, process.raw(port).post(long) as two:
            eventually(lambda: figures(client)["lattice_rows"] == 2)
            eventually(lambda: figures(client)["lattice_rows"] == 1)
            found = figures(client)
            assert (found["lattice_rows"], found["lattice_queue_depth"]) == (1, 1)
            assert found["lattice_inflight_requests"] == 3  # the scrape, and both: nobody has left
            one.close()
            eventually(lambda: figures(client)["lattice_queue_depth"] == 0)
            assert figures(client)["lattice_rows"] == 1
            two.close()
            eventually(lambda: figures(client)["lattice_rows"] == 0)
        assert process.signal(signal.SIGTERM).ended() == 0


def test_metrics_answer_while_every_place_is_taken() -> None:
    with served(engine=EngineSettings(max_rows=1, max_pending=1)) as house, house.client() as client:
        running = house.raw().post(body("hang", stream=True))
        running.until(b'"content":"a"')  # has the row, before the other can take it
        waiting = house.raw().post(body("hang", stream=True))
        eventually(lambda: figures(client)["lattice_queue_depth"] == 1)
        assert client.post(PATH, json=body()).status_code == 429
        assert figures(client)[f"lattice_http_requests_total{{method=POST,route={PATH},status=429}}"] == 1
        running.close()
        waiting.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_metrics_are_there_under_every_policy(policy: str) -> None:
    with served(settings=with_settings(policy=POLICIES[policy])) as house, house.client() as client:
        assert figures(client)["lattice_engine_state{state=ready}"] == 1
        assert ("/metrics" in client.get("/").text) is (policy == "openai")


def test_there_is_no_number_of_a_process_that_grows_with_its_clients() -> None:
    """Series after 300 different requests are as many as after 3."""

    def asked(house: Served, times: int) -> int:
        with house.client() as client:
            for number in range(times):
                client.get(f"/{number}/{os.urandom(4).hex()}")
                client.post(PATH, json=body(model=f"m{number}", user=f"u{number}"))
            figures(client)  # which has a series of its own from now on
            return len(figures(client))

    with served() as house:
        first = asked(house, 3)
        assert asked(house, 150) == first


# The log file.


def serve(home: Path, *arguments: str, **environment: str) -> Process:
    script = write_script(home, REPLIES)
    return Process(home, "--model", f"script:{script}", "--port", "0", *arguments, **environment)


def test_a_log_file_is_private_and_has_a_line_for_each_request(tmp_path: Path) -> None:
    log = tmp_path / "lattice.log"
    with serve(tmp_path, "--log-file", str(log), "--log-format", "json") as process:
        port = process.port()
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        with process.client(port) as client:
            client.post(PATH, json=body(), headers={"X-Request-Id": "mine-1"})
            client.get("/nowhere")
        assert process.signal(signal.SIGTERM).ended() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    first, second = (line for line in lines if "route" in line)
    assert (first["request_id"], first["route"], first["status"], first["tokens"]) == ("mine-1", PATH, 200, 3)
    assert (first["stream"], first["method"], first["level"]) == (False, "POST", "info")
    assert re.fullmatch("[0-9a-f]{32}", second["request_id"])
    assert process.talk().count("\n") == 1  # only what is said to a person


@pytest.mark.parametrize("hang_up", [True, False], ids=["with SIGHUP", "without"])
def test_a_log_file_may_be_moved_away(tmp_path: Path, hang_up: bool) -> None:
    """As logrotate does, whether or not it says so."""
    log, old = tmp_path / "lattice.log", tmp_path / "lattice.log.1"
    with serve(tmp_path, "--log-file", str(log)) as process:
        port = process.port()
        with process.client(port) as client:
            client.get("/first")
            log.rename(old)
            if hang_up:
                process.signal(signal.SIGHUP)
            client.get("/second")
            log.unlink()
            client.get("/third")
        assert process.signal(signal.SIGTERM).ended() == 0
    assert "/first" in old.read_text() and "/second" not in old.read_text()
    assert "/third" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO lattice\.serve: GET /third 404 ", log.read_text())


def test_a_path_cannot_write_a_line_of_its_own(tmp_path: Path) -> None:
    """Nor steer the terminal of who reads the log."""
    log = tmp_path / "lattice.log"
    with serve(tmp_path, "--log-file", str(log)) as process:
        port = process.port()
        with process.raw(port) as raw:
            raw.send(
                b"GET /a%0a2026-01-01%20INFO%20forged%1b[2J%c2%85%e2%80%a8 HTTP/1.1\r\nConnection: close\r\n\r\n"
            ).rest()
        assert process.signal(signal.SIGTERM).ended() == 0
    lines = log.read_text().split("\n")
    assert len([line for line in lines if "forged" in line]) == 1
    assert r"/a\n2026-01-01 INFO forged\x1b[2J\x85\u2028 404" in "\n".join(lines)


def test_a_log_that_cannot_be_opened_is_a_usage_error(tmp_path: Path) -> None:
    with serve(tmp_path, "--log-file", str(tmp_path / "nowhere" / "log")) as process:
        assert process.ended(30) == 2
    assert process.talk().startswith(f"error: cannot write the log to `{tmp_path}/nowhere/log`: No such file")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_full_disk_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    with serve(tmp_path, "--log-file", "/dev/full") as process:
        port = process.port()
        with process.client(port) as client:
            for _ in range(3):
                assert client.post(PATH, json=body()).status_code == 200
        assert process.signal(signal.SIGTERM).ended() == 0
    assert "Traceback" not in process.talk()


def request_ids(answer: httpx2.Response) -> Any:
    return answer.headers["x-request-id"]


@pytest.mark.parametrize("offered", ["a b", "x" * 129, "a\u00e9", "", "a;b", "<script>"])
def test_an_id_that_cannot_stand_in_a_log_is_replaced(tmp_path: Path, offered: str) -> None:
    with served() as house, house.client() as client:
        answer = client.get("/health", headers={"X-Request-Id": offered.encode("latin-1")})
        assert re.fullmatch("[0-9a-f]{32}", request_ids(answer))
        with house.raw() as raw:  # refused before the application: its id is kept too
            told = raw.send(b"POST / HTTP/1.1\r\nX-Request-Id: mine-2\r\nContent-Length: 99999999\r\n\r\n").rest()
        assert b"X-Request-Id: mine-2\r\n" in told
