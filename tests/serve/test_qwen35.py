"""A Qwen3.5 in miniature behind a real server: its own template, vocabulary and layers, over a socket.

Its weights are random, so its words mean nothing; what is tested is where they go.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.serve.process import Process

pytestmark = [pytest.mark.wire, pytest.mark.timeout(300)]

FIXTURES = Path(__file__).parents[2] / "fixtures"
FOLDER = FIXTURES / "models" / "qwen3_5-0.8b-heads"
LINES = {
    line["name"]: line
    for line in map(json.loads, (FIXTURES / "templates" / "qwen3.5.renderings.jsonl").read_text("utf-8").splitlines())
}
GREEDY = {"temperature": 0, "max_tokens": 12}
QUESTION = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    home = tmp_path_factory.mktemp("home")
    with Process(home, "--model", str(FOLDER), "--port", "0") as process, process.client(process.port()) as client:
        yield client


def asked(client: httpx2.Client, **body: Any) -> httpx2.Response:
    return client.post("/v1/chat/completions", json={"messages": QUESTION, **GREEDY, **body})


def test_a_conversation_counts_as_many_tokens_as_transformers_makes_of_it(client: httpx2.Client) -> None:
    for name in ("one question", "tools and a system message", "several turns"):
        line = LINES[name]
        body = {field: line[field] for field in ("messages", "tools") if field in line}
        answer = asked(client, **body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens"] == len(line["ids"])


def test_the_switch_of_thinking_counts_for_each_request(client: httpx2.Client) -> None:
    """Report 52: off, on and the template's default, which is on; whichever came before."""
    for _ in range(2):
        off = asked(client, chat_template_kwargs={"enable_thinking": False}).json()
        assert off["usage"]["prompt_tokens"] == len(LINES["thinking off"]["ids"])
        message = off["choices"][0]["message"]
        assert message["content"] and not message.get("reasoning_content")
        for body in ({}, {"chat_template_kwargs": {"enable_thinking": True}}):
            on = asked(client, **body).json()
            assert on["usage"]["prompt_tokens"] == len(LINES["thinking on"]["ids"])
            message = on["choices"][0]["message"]
            assert message["reasoning_content"] and not message["content"]


def test_a_conversation_without_a_question_is_refused_with_the_templates_reason(client: httpx2.Client) -> None:
    """Report 50: also where a stream was asked for, and then with a status."""
    for name in ("no user turn", "no user turn, only a result", "only a system message"):
        line = LINES[name]
        body = {field: line[field] for field in ("messages", "tools") if field in line}
        for stream in (False, True):
            answer = asked(client, **body, stream=stream)
            assert answer.status_code == 400
            assert "No user query found in messages." in answer.json()["error"]["message"]
            assert answer.json()["error"]["param"] == "messages"
