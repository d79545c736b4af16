"""Turns, ratios and words; servers that are started and ended with all their processes.

Thread: any
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.bench.compare import Turn, ratio, run_turns, values, word
from lattice_cli.bench.contender import Contender, read_entry
from lattice_cli.bench.noise import UNWATCHED, Watch
from lattice_cli.bench.processes import end_tree, processes, tree
from lattice_cli.bench.questions import Source
from lattice_cli.bench.reading import Answer, Miss
from lattice_cli.bench.stats import Ratio
from lattice_cli.cli import run
from lattice_cli.errors import BenchError, UsageError
from tests.bench.stub import finish, refuse, serving, stream, text, usage

pytestmark = pytest.mark.wire

LIMIT_S = 60.0
# A server that starts a child, which starts another one, and answers chat requests. Its argument is the port.
SERVER = """
import json, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
grandchild = "import subprocess, sys, time; time.sleep(600)"
child = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', '{grandchild}']); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child])
class Handler(BaseHTTPRequestHandler):
    def log_message(self, *given): pass
    def do_GET(self): self.say("application/json", json.dumps({"data": [{"id": "little"}]}))
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        frames = [{"choices": [{"delta": {"content": "a"}}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]},
                  {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}]
        self.say("text/event-stream", "".join(f"data: {json.dumps(frame)}\\n\\n" for frame in frames))
    def say(self, kind, text):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(text.encode())
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def wait_for(true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def server(folder: Path) -> str:
    script = folder / "server.py"
    script.write_text(SERVER)
    return f"serve:{sys.executable} {script} {{port}}"


# Turns.


def answer(first_s: float, decode_s: float = 1.0) -> Answer:
    return Answer(100, 0, 11, first_s, first_s + decode_s, first_s + decode_s, (), "length")


def turns(ours: list[float], theirs: list[float]) -> list[Turn]:
    pairs = [(place, at, one) for place, side in enumerate((ours, theirs)) for at, one in enumerate(side)]
    return [Turn(place, at, answer(seconds), UNWATCHED) for place, at, seconds in pairs]


def test_turns_go_a_b_b_a_and_both_are_asked_the_same() -> None:
    """A machine that slows down, or a cache that fills, slows neither of them more."""
    order: list[str] = []

    def named(name: str) -> Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]:
        def reply(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
            order.append(name + body["messages"][0]["content"])
            assert body["model"] == "stub/model"
            stream(text("a"), text("b"), finish(), usage(9, 2))(handler, body)

        return reply

    with (
        serving(named("A")) as one,
        serving(named("B")) as other,
        Contender(read_entry(one.url), 5, 5) as a,
        Contender(read_entry(other.url), 5, 5) as b,
    ):
        order.clear()  # each was asked once, to see that it answers
        found = list(run_turns([a, b], Source("whatever", 8, 0, word_count=3), 2, 0, Watch()))
    assert [(turn.place, turn.round) for turn in found] == [
        (0, 0),
        (1, 0),
        (1, 0),
        (0, 0),
        (0, 1),
        (1, 1),
        (1, 1),
        (0, 1),
    ]
    asked = [said.removesuffix(" is your number.") for said in order]
    assert asked == ["A0", "B0", "B1", "A1", "A2", "B2", "B3", "A3"]


def test_a_ratio_pairs_the_rounds_and_leaves_out_those_without_both() -> None:
    """A slow minute slows a round of both."""
    found = turns([0.1, 0.4, 0.1, 0.2, 0.1, 0.1, 0.1], [0.2, 0.8, 0.2, 0.4, 0.2, 0.2])
    there = ratio(found, 1, "first_token_ms", seed=1)
    assert there is not None
    assert (there.ratio, there.low, there.high, there.pairs) == (
        pytest.approx(2),
        pytest.approx(2),
        pytest.approx(2),
        6,
    )
    assert word(there, "first_token_ms") == "slower"
    assert word(there, "decode_tok_s") == "faster"


def test_a_round_is_the_mean_of_its_turns_and_a_miss_is_none() -> None:
    found = [*turns([0.1], []), *turns([0.3], []), Turn(0, 0, Miss("boom"), UNWATCHED)]
    assert values(found, 0, "first_token_ms") == {0: pytest.approx(200)}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Ratio(1.2, 1.1, 1.3, 8), "faster"),
        (Ratio(0.8, 0.7, 0.9, 8), "slower"),
        (Ratio(1.2, 0.9, 1.3, 8), "no difference seen"),
        (Ratio(1.2, 1.1, 1.3, 5), "too few rounds"),
    ],
)
def test_a_word_is_said_only_when_the_interval_excludes_1(found: Ratio, said: str) -> None:
    assert word(found, "decode_tok_s") == said


# Entries.


@pytest.mark.parametrize(
    ("typed", "command", "url", "model"),
    [
        ("http://h:1/v1#x/y", None, "http://h:1/v1", "x/y"),
        ("http://h:1", None, "http://h:1", None),
        ("serve:srv -m 'a b' --port {port} #m", ("srv", "-m", "a b", "--port", "{port}"), "", "m"),
    ],
)
def test_entries_are_read(typed: str, command: tuple[str, ...] | None, url: str, model: str | None) -> None:
    entry = read_entry(typed)
    assert (entry.label, entry.command, entry.url, entry.model) == (typed, command, url, model)


def test_a_model_is_served_by_this_very_lattice() -> None:
    entry = read_entry("smollm2-135m", model="another server's name")
    assert entry.command == (
        sys.executable,
        "-m",
        "lattice_cli",
        "serve",
        "--model",
        "smollm2-135m",
        "--port",
        "{port}",
    )
    assert entry.model is None


@pytest.mark.parametrize("typed", ["serve:srv --port 80", "serve:", "serve:'"])
def test_a_command_without_a_place_for_the_port_is_a_usage_error(typed: str) -> None:
    with pytest.raises(UsageError):
        read_entry(typed)


# Processes.


def test_a_server_is_started_and_ended_with_all_its_processes(tmp_path: Path) -> None:
    with Contender(read_entry(server(tmp_path)), 5, LIMIT_S) as contender:
        assert contender.model == "little"
        assert contender._process is not None
        root = contender._process.pid
        wait_for(lambda: len(tree(root)) == 3)
        pids = {one.pid for one in tree(root)}
    assert not pids & processes().keys()
    assert contender._process.returncode is not None


def test_a_server_that_ends_says_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import sys; print('no such model'); sys.exit('really none')")
    with pytest.raises(BenchError) as caught, Contender(read_entry(f"serve:{sys.executable} {script} {{port}}"), 5, 5):
        pass
    assert caught.value.message.endswith("ended before it answered: no such model really none")


def test_a_server_that_does_not_answer_in_time_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "silent.py"
    script.write_text("import time; time.sleep(600)")
    contender = Contender(read_entry(f"serve:{sys.executable} {script} {{port}}"), 1, 0.1)
    with pytest.raises(BenchError, match="does not answer: it lists no model"), contender:
        pass
    assert contender._process is not None
    assert contender._process.returncode is not None


def test_a_process_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    end_tree(process, grace_s=0.2)
    assert process.returncode == -signal.SIGKILL
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C in the middle of the turns. The servers have sessions of their own, so nothing else would end them."""
    entry = server(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "lattice_cli", "bench", "compare", entry, entry, "--rounds", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while line := process.stderr.readline():
            if line.startswith(b"round"):
                break
        assert process.poll() is None
        pids = {one.pid for one in tree(process.pid)}
        assert len(pids) >= 7
        os.kill(process.pid, number)
        process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode in (130, 143)
    assert not pids & processes().keys()


# The command.


def test_the_command_prints_ratios_and_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    def fast(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        stream(*(text("a") for _ in range(4)), finish(), usage(9, 4))(handler, body)

    def slow(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        threading.Event().wait(0.03)
        fast(handler, body)

    with serving(fast) as one, serving(slow) as other:
        words = ["bench", "compare", one.url, other.url, "--rounds", "6", "--tokens", "4", "--seed", "1", "--json"]
        before = signal.getsignal(signal.SIGTERM)
        try:
            assert run(words) == 0
        finally:
            signal.signal(signal.SIGTERM, before)
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert [one["letter"] for one in record["contenders"]] == ["A", "B"]
    assert [len(one["trials"]) for one in record["contenders"]] == [12, 12]
    (first,) = [one for one in record["ratios"] if one["figure"] == "first_token_ms"]
    assert (first["word"], first["pairs"]) == ("slower", 6)
    assert first["low"] > 1
    assert "B / A" in err


def test_a_failed_request_makes_the_exit_status_4() -> None:
    seen: list[int] = []

    def breaks(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        seen.append(1)
        (refuse(500, "boom") if len(seen) == 6 else stream(text("a"), text("b"), finish(), usage(9, 2)))(handler, body)

    with serving(breaks) as one, serving(stream(text("a"), text("b"), finish(), usage(9, 2))) as other:
        before = signal.getsignal(signal.SIGTERM)
        try:
            assert run(["bench", "compare", one.url, other.url, "--rounds", "2", "--tokens", "2", "--json"]) == 4
        finally:
            signal.signal(signal.SIGTERM, before)
