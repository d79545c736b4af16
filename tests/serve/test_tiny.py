"""Real MLX behind the server: a tiny random model, cancelled in prefill and decode, and ended by a signal.

Thread: any
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.serve.process import Process
from tests.serve.stage import PATH, body, eventually
from tests.tiny import write_tiny_folder

pytestmark = pytest.mark.tiny

# One of each is in every run; twenty of twenty in the slow one.
TIMES = [pytest.param(time, marks=[pytest.mark.slow] if time else []) for time in range(20)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("tiny") / "tiny-llama")


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_a_server_that_has_used_mlx_with_status_0(
    tmp_path: Path, folder: Path, number: signal.Signals, time: int
) -> None:
    """A thread that had generated and then returned aborted the process at exit (status 134) in 31 of 36 runs.

    One reply is finished and one is running when the signal comes.
    """
    with Process(tmp_path, "--model", str(folder), "--port", "0", "--drain-s", "0") as process:
        port = process.port()
        with process.client(port) as client, process.raw(port) as running:
            assert client.post(PATH, json=body(max_tokens=5)).status_code == 200
            running.post(body("x" * 300, stream=True)).until(b'"role":"assistant"')  # a reply may be without text
            assert process.signal(number).ended() == 0, process.talk()
        assert "Traceback" not in process.talk()


def test_a_client_that_leaves_a_real_model_frees_its_row(tmp_path: Path, folder: Path) -> None:
    """In decode and in prefill, streamed and plain; with one row the next request is answered.

    Report 79: and its text is what it was before anybody left.
    """
    with Process(tmp_path, "--model", str(folder), "--port", "0", "--max-rows", "1", "--prefill-chunk", "8") as process:
        port = process.port()
        with process.client(port) as client:
            first = client.post(PATH, json=body("y", max_tokens=8, temperature=0)).json()
            for stream in (True, False) * 3:
                leaver = process.raw(port).post(body("x" * 300, stream=stream))
                if stream:
                    leaver.until(b'"role":"assistant"')
                leaver.close()
                again = client.post(PATH, json=body("y", max_tokens=8, temperature=0)).json()
                assert again["choices"] == first["choices"]
        assert process.signal(signal.SIGTERM).ended() == 0


def test_odd_values_do_not_kill_the_engine(tmp_path: Path, folder: Path) -> None:
    """Each of these ended mlx_lm.server's generation thread or process."""
    odd = [
        {"temperature": 1, "top_k": 10**9},
        {"top_k": 261, "temperature": 1},
        {"stop": [1, 2]},
        {"logit_bias": {"999999999": 5}},
        {"xtc_threshold": 0.9, "xtc_probability": 0.5},
        {"seed": -(2**63)},
        {"seed": 2**64 - 1},
        {"min_p": 1, "temperature": 2},
        {"top_p": 1e-9, "temperature": 2},
        {"repetition_penalty": 1e300},
        {"repetition_penalty": 1e-300},
        {"presence_penalty": -2, "frequency_penalty": 2},
        {"n": 16},
        {"temperature": 1e-300},
    ]
    with Process(tmp_path, "--model", str(folder), "--port", "0") as process:
        port = process.port()
        with process.client(port) as client:
            for fields in odd:
                answer = client.post(PATH, json=body(max_tokens=3, **fields))
                assert answer.status_code in (200, 400), (fields, answer.text)
                assert client.post(PATH, json=body(max_tokens=1)).status_code == 200, fields
            eventually(lambda: client.get("/health").json() == {"status": "ok"})
        assert process.signal(signal.SIGTERM).ended() == 0
