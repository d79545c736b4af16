"""lattice_serve's manners over real sockets and as a command: clients that leave, bodies over the limit, flags.

Thread: any
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.policy import LATTICE_050, LATTICE_061, POLICIES, Policy
from lattice_cli.serve.request_options import PolicyName
from lattice_cli.serve.wire import wire_named
from lattice_cli.serve.wire.lattice_050 import Lattice050
from lattice_cli.serve.wire.lattice_061 import Lattice061
from lattice_cli.serve.wire.openai import OpenAi
from lattice_cli.settings import EngineSettings
from tests.serve.process import Process
from tests.serve.stage import PATH, Raw, Served, body, eventually, served, with_settings, write_script

pytestmark = pytest.mark.wire

LATTICE = [LATTICE_061, LATTICE_050]
ONE_SLOT = EngineSettings(max_rows=1, max_pending=1)
CONTENT = {"content": "hello world", "role": "assistant"}
by_policy = pytest.mark.parametrize("policy", LATTICE, ids=lambda policy: policy.name)


def house(policy: Policy, **options: Any) -> Any:
    return served(settings=with_settings(policy=policy), **options)


def answers(one: Served) -> None:
    """The engine is there for the next one."""
    with one.client() as client:
        answer = client.post(PATH, json=body())
    assert answer.json()["choices"][0]["message"] == CONTENT


def answer_of(client: Raw) -> tuple[int, str, bytes]:
    """Status, media type and body of what came until the end of the connection."""
    head, _, said = client.rest().partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    (media,) = (line.partition(": ")[2] for line in lines if line.lower().startswith("content-type:"))
    return int(lines[0].split()[1]), media, said


# Who leaves when.


@by_policy
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("content", ["prefill", "tick"])
def test_a_client_that_leaves_stops_its_reply(policy: Policy, content: str, stream: bool) -> None:
    """running_job_cancelled_midstream_stops_early_and_worker_survives, running_job_cancelled_during_prefill_..."""
    with house(policy, engine=ONE_SLOT) as one:
        client = one.raw().post(body(content, stream=stream))
        if stream and content == "tick":
            client.until(b'"content":"tick "', times=2)
        else:
            eventually(lambda: not one.idle())
        client.close()
        answers(one)
        eventually(one.idle)


@by_policy
def test_a_client_that_leaves_while_it_waits_costs_nothing(policy: Policy) -> None:
    """queued_job_cancelled_before_dequeue_is_skipped_entirely"""
    with house(policy, engine=ONE_SLOT) as one:
        running = one.raw().post(body("hang", stream=True))
        running.until(b'"content":"a"')
        queued = one.raw().post(body("mute", stream=True))  # would hold the slot for ever
        eventually(lambda: one.stage.worker.accepted == 2)
        if policy is LATTICE_050:
            queued.until(b'"role":"assistant"')
        else:
            queued.socket.settimeout(0.2)
            with pytest.raises(TimeoutError):
                queued.socket.recv(1)
        queued.close()
        running.close()
        eventually(one.idle)
        answers(one)


# What is sent.


def too_large(policy: Policy) -> tuple[int, str, bytes]:
    if policy is LATTICE_050:
        return 413, "text/plain; charset=utf-8", b"Failed to buffer the request body: length limit exceeded"
    told = {"message": "request body exceeds 1048576 bytes", "type": "invalid_request_error"}
    told |= {"code": "request_body_too_large", "param": None}
    return 413, "application/json", json.dumps({"error": told}, separators=(",", ":")).encode()


@by_policy
def test_a_body_over_the_limit_is_refused_before_the_rest_comes(policy: Policy) -> None:
    over = policy.max_body_bytes + 1
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with house(policy) as one:
        for sent in (
            f"{head}Content-Length: {over}\r\n\r\n".encode(),
            f"{head}Content-Length: {over}\r\nExpect: 100-continue\r\n\r\n".encode(),
            f"{head}Transfer-Encoding: chunked\r\n\r\n{over:x}\r\n".encode() + b"x" * over + b"\r\n",
        ):
            with one.raw() as client:
                assert answer_of(client.send(sent)) == too_large(policy)


@by_policy
def test_no_body_at_all_is_no_json(policy: Policy) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    with house(policy) as one, one.raw() as client:
        status, media, said = answer_of(client.send(head.encode()))
    told = "Failed to parse the request body as JSON: EOF while parsing a value at line 1 column 0"
    assert status == 400
    if policy is LATTICE_050:
        assert (media, said.decode()) == ("text/plain; charset=utf-8", told)
    else:
        assert json.loads(said)["error"]["code"] == "invalid_request_body"


@by_policy
def test_what_is_no_http_has_the_envelope(policy: Policy) -> None:
    with house(policy) as one, one.raw() as client:
        status, media, said = answer_of(client.send(b"hello\r\n\r\n"))
    assert (status, media) == (400, "application/json")
    assert list(json.loads(said)["error"])[:2] == ["message", "type"]


# The command.


def test_every_policy_can_be_named_and_has_a_wire() -> None:
    assert {name.value for name in PolicyName} == set(POLICIES)
    assert {policy.name: type(wire_named(policy.wire)) for policy in POLICIES.values()} == {
        "openai": OpenAi, "lattice-0.6.1": Lattice061, "lattice-0.5.0": Lattice050,
    }  # fmt: skip


def test_the_flags_are_the_servers_own_values(tmp_path: Path) -> None:
    script = write_script(tmp_path, [{"tell": True, "tokens": []}], think=["<t>", "</t>"])
    flags = ("--temperature", "0.5", "--max-tokens", "9", "--reasoning-budget", "4", "--max-body", "3")
    serve = ("--model", f"script:{script}", "--port", "0", "--policy", "lattice-0.6.1")
    with Process(tmp_path, *serve, *flags) as process, process.client(process.port()) as one:
        said = one.post(PATH, json=body()).json()["choices"][0]["message"]["content"]
        assert one.get("/health").text == "ok"
        refused = one.post(PATH, content=b" " * ((3 << 20) + 1)).json()["error"]["message"]
    asked = json.loads(said)
    assert asked["limits"] == {"max_tokens": 14, "reasoning_tokens": 4, "answer_tokens": 9}
    assert (asked["sampling"]["temperature"], asked["sampling"]["repetition_penalty"]) == (0.5, 1.1)
    assert refused == "request body exceeds 3145728 bytes"


def test_a_budget_on_a_model_without_thoughts_is_one_sentence(tmp_path: Path) -> None:
    script = write_script(tmp_path, [{"tokens": ["x"]}])
    with Process(tmp_path, "--model", f"script:{script}", "--port", "0", "--reasoning-budget", "4") as process:
        assert process.ended() == 2
        assert process.talk().splitlines() == [
            "error: `--reasoning-budget` needs a model that marks its thoughts, and `echo` does not",
            "",
            "hint: leave it out, or choose another model",
        ]
