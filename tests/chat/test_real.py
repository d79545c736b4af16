"""The real small model: the same words from the engine of this process and through a server, turn after turn.

Thread: any
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.chat.terminal import LATTICE, environment
from tests.model.real import smollm2
from tests.serve.process import Process

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

ASKED = ("What is the capital of France? Answer in one word.", "And of Italy?")
GREEDY = ("--quiet", "--json", "--temperature", "0", "--max-tokens", "12")


def chat(home: Path, *arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [*LATTICE, "chat", *GREEDY, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(home, LATTICE_KERNELS="off", LATTICE_API_KEY=None, OPENAI_API_KEY=None),
        timeout=200,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    said: dict[str, object] = json.loads(done.stdout)
    return said


def test_a_talk_with_the_engine_and_one_through_a_server_are_the_same(tmp_path: Path) -> None:
    model = str(smollm2())
    here = [chat(tmp_path, "--model", model, "--session", "here", "-p", ASKED[0]), chat(tmp_path, "-c", "-p", ASKED[1])]
    with Process(tmp_path, "--model", model, "--port", "0") as server:
        url = ("--url", f"http://127.0.0.1:{server.port()}/v1")
        there = [
            chat(tmp_path, *url, "--session", "there", "-p", ASKED[0]),
            chat(tmp_path, "--session", "there", "-p", ASKED[1]),
        ]
    assert "Paris" in str(here[0]["answer"])
    for ours, servers in zip(here, there, strict=True):
        assert servers["answer"] == ours["answer"]
        assert servers["finish_reason"] == ours["finish_reason"]
        counts, told = ours["usage"], servers["usage"]
        assert isinstance(counts, dict) and isinstance(told, dict)
        assert told["prompt_tokens"] == counts["prompt_tokens"]
        assert told["completion_tokens"] == counts["completion_tokens"]
