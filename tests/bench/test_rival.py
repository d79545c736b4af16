"""transformers beside us: what it is asked, how its answers become times, and a child that does not do what it should.

The children are little scripts; torch itself is met in the last tests alone, which are slow and skipped where it is
not installed (`LATTICE_TORCH_PYTHON` names another interpreter that has it).

Thread: any
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.bench import rival, rival_transformers
from lattice_cli.bench.processes import processes
from lattice_cli.bench.rival import Patience, TransformersRival, opening
from lattice_cli.bench.rival_process import ChildProcess
from lattice_cli.bench.speed import Point
from lattice_cli.bench.speed_trial import Trial
from lattice_cli.cli import run
from lattice_cli.engine import measure_limits
from lattice_cli.errors import BenchError, UsageError
from lattice_cli.job import Job, Limits, Prompt, Sampling
from lattice_cli.model.card import ModelSource
from lattice_cli.model.random_weights import RandomModel
from tests.tiny import Architecture, tiny_config, write_json, write_tiny_folder

pytestmark = pytest.mark.wire

DENSE = RandomModel(Path("config.json"), dtype="bfloat16", seed=7)
WAIT_S = 60.0

# Answers as the real child does, of times that are known: 2 s for the prompts, then 0.5 s for each token after the
# first. What stands in AT_TRIAL is done when a trial is asked for.
CHILD = """
import json, os, sys, time
def send(**fields): print(json.dumps(fields), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "open":
        send(say="one moment")
        send(torch="2", transformers="5", device="a GPU", network="Tiny", asked=asked)
    elif asked["do"] == "load":
        send(dtype="bfloat16", pid=os.getpid())
    elif asked["do"] == "prepare":
        send(compile="default", failures=["reduce-overhead: no"])
    else:
        AT_TRIAL
        tokens = asked["tokens"]
        ids = [[len(prompt)] * tokens for prompt in asked["prompts"]]
        end = 102 + (tokens - 1) / 2
        send(began_s=100.0, read_s=102.0, submitted_s=102 + (tokens - 1) / 8, ended_s=end, ids=ids, peak_bytes=5)
"""


def script(folder: Path, text: str) -> Path:
    file = folder / "child.py"
    file.write_text(text)
    return file


def child(folder: Path, at_trial: str = "pass") -> Path:
    return script(folder, CHILD.replace("AT_TRIAL", at_trial))


def job(prompt_tokens: int, tokens: int) -> Job:
    return Job("one", Prompt(tuple(range(prompt_tokens)), ""), Sampling(0.0), Limits(tokens, ignore_end=True))


def gone(pid: int) -> None:
    until_s = time.monotonic() + WAIT_S
    while pid in processes():
        assert time.monotonic() < until_s, f"process {pid} lives on"
        time.sleep(0.02)


def test_two_moments_of_the_child_become_the_rates_that_the_definitions_say(tmp_path: Path) -> None:
    with TransformersRival(DENSE, program=child(tmp_path)) as rival:
        rival.load()
        rival.prepare(Point(20, 9, rows=2))
        trial = Trial(tuple(rival.run([job(20, 9), job(20, 9)])))
        rival.prepare(Point(30, 5))
    gone(rival.facts["pid"])
    assert [(row.prompt_tokens, row.completion_tokens, row.read_s) for row in trial.rows] == [(20, 9, 2.0)] * 2
    assert trial.rows[0].tokens_s == pytest.approx([2 + at / 2 for at in range(9)], abs=1e-12)
    assert trial.prefill_rate == pytest.approx(40 / 2)
    assert trial.decode_rate == pytest.approx(2 * 8 / 4)
    assert (trial.first_token_s, trial.host_step_s) == (2.0, 0.125)
    assert rival.facts["asked"] == {
        "do": "open", "threads": None, "random": True, "path": "config.json", "dtype": "bfloat16", "seed": 7,
    }  # fmt: skip
    assert rival.facts["peak_bytes"] == 5
    told = {"compile": "default", "failures": ["reduce-overhead: no"]}
    assert rival.facts["shapes"] == [
        {"rows": 2, "prompt_tokens": 20, "tokens": 9, **told},
        {"rows": 1, "prompt_tokens": 30, "tokens": 5, **told},
    ]


def test_what_a_child_says_is_shown_and_waiting_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A compiler takes a minute and more: nobody should think that nothing happens."""
    text = (
        "import json, time\ninput()\nprint(json.dumps({'say': 'compiling'}), flush=True)\ntime.sleep(0.5)\nprint('{}')"
    )
    with ChildProcess("torch", (sys.executable, str(script(tmp_path, text))), still_s=0.1) as process:
        assert process.ask({}, "compiling a step", 30) == {}
    lines = capsys.readouterr().err.splitlines()
    assert "torch: compiling" in lines
    assert "torch: compiling a step, for 0 s now" in lines


@pytest.mark.parametrize(
    ("at_trial", "said"),
    [
        ("sys.stderr.write('cuBLAS is not well\\n'); sys.exit(3)",
         "transformers ended with status 3 before it answered (its last words: cuBLAS is not well)"),
        ("os.kill(os.getpid(), 9)", "transformers ended with status -9 before it answered"),
        ("print('Welcome to torch!', flush=True)", "transformers said what is no answer: `Welcome to torch!`"),
        ("print('[1]', flush=True)", "transformers said what is no answer: `[1]`"),
        ("send(ids=[[1, 2]]); continue", "transformers answered a trial with {'ids': [[1, 2]]}"),
        ("send(error='the GPU is full', hint='fewer rows'); break", "the GPU is full"),
        ("time.sleep(600)", "transformers did not answer in 0.2 s: a trial"),
        ("os.close(1); time.sleep(600)", "transformers did not answer in 0.2 s: a trial"),
    ],
)  # fmt: skip
def test_a_child_that_fails_in_a_trial_is_told_in_one_sentence_and_ended(
    tmp_path: Path, at_trial: str, said: str
) -> None:
    patience = Patience(trial_s=0.2 if "sleep" in at_trial else WAIT_S)
    rival = TransformersRival(DENSE, program=child(tmp_path, at_trial), patience=patience)

    def measure() -> None:
        with rival:
            rival.load()
            rival.run([job(3, 2)])

    with pytest.raises(BenchError) as caught:
        measure()
    if "os.close" in at_trial:
        said = "transformers closed its end and says no more"
    assert caught.value.message == said
    gone(rival.facts["pid"])


def test_a_child_that_hangs_at_its_start_is_given_up_and_ended(tmp_path: Path) -> None:
    """Whatever it started is ended as well: torch compiles in processes of its own."""
    other = "import time; time.sleep(600)"
    file = tmp_path / "pids"
    text = (
        f"import os, subprocess, sys, time\nother = subprocess.Popen([sys.executable, '-c', {other!r}])\n"
        f"open({str(file)!r}, 'w').write(f'{{os.getpid()}} {{other.pid}}')\ntime.sleep(600)"
    )
    rival = TransformersRival(DENSE, program=script(tmp_path, text), patience=Patience(open_s=1.0))
    with pytest.raises(BenchError, match=r"^transformers did not answer in 1 s: importing torch and transformers$"):
        rival.__enter__()
    for pid in file.read_text().split():
        gone(int(pid))


def test_a_long_request_to_a_child_that_does_not_read_holds_nobody(tmp_path: Path) -> None:
    """More than a pipe holds: who writes waits, and neither the answer's limit nor the end does."""
    process = ChildProcess("torch", (sys.executable, str(script(tmp_path, "import time; time.sleep(600)"))))
    began_s = time.monotonic()
    with pytest.raises(BenchError, match=r"did not answer in 0\.2 s"), process:
        process.ask({"prompts": list(range(200_000))}, "a trial", 0.2)
    assert time.monotonic() - began_s < WAIT_S


def test_an_interpreter_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="cannot be started: No such file"):
        TransformersRival(DENSE, python=str(tmp_path / "python")).__enter__()


# The command.


def test_a_record_says_what_each_rival_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By turns in the order asked for, each once; prompts are those that the others read."""
    monkeypatch.setattr(rival, "TransformersRival", partial(TransformersRival, program=child(tmp_path)))
    monkeypatch.setattr(measure_limits, "BUFFER_BYTES", 1 << 16)
    monkeypatch.setitem(measure_limits.GEMM_SIZE, "cpu", 32)
    write_json(tmp_path / "config.json", tiny_config("qwen3"))
    words = ["--random-weights", str(tmp_path / "config.json"), "--dtype", "float32", "--tokens", "3", "--trials", "2"]
    names = "transformers,mlx-lm,transformers"
    assert run(["bench", "speed", *words, "--prompt-tokens", "20", "--reference", names, "--json"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert [point["engine"] for point in record["points"]] == ["lattice", "transformers", "mlx-lm"]
    turns = [line.split(": trial")[0] for line in err.splitlines() if ": trial" in line]
    by_turns = ["20 + 3 tokens", "20 + 3 tokens, transformers", "20 + 3 tokens, mlx-lm"]
    assert turns == by_turns + by_turns[::-1]
    figures = record["points"][1]["figures"]
    assert (figures["prefill_tok_s"]["median"], figures["decode_tok_s"]["median"]) == (10.0, 2.0)
    assert record["rivals"]["transformers"]["network"] == "Tiny"
    assert [shape["rows"] for shape in record["rivals"]["transformers"]["shapes"]] == [1]


def test_a_rival_that_is_not_known_is_told_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "speed", "--reference", "mlx-lm,vllm"]) == 2
    assert [line for line in capsys.readouterr().err.splitlines() if line] == [
        "error: `--reference` knows no `vllm`",
        "hint: there are mlx-lm, transformers",
    ]


# What transformers is not asked for.


def test_packed_weights_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        opening(RandomModel(Path("config.json"), bits=8), None)
    assert (caught.value.message, caught.value.param, caught.value.hint) == (
        "`--reference transformers` computes with dense weights, and `--bits` is 8", "--bits", "add `--dtype bfloat16`",
    )  # fmt: skip
    folder = write_tiny_folder(tmp_path / "tiny")
    dense = ModelSource("tiny", folder, "folder")
    assert opening(dense, 2) == {"do": "open", "threads": 2, "random": False, "path": str(folder)}
    fields = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", fields | {"quantization": {"bits": 4, "group_size": 64}})
    with pytest.raises(UsageError, match="reads folders of dense safetensors, and `tiny` is 4-bit group 64"):
        opening(dense, None)


SPEED = ("bench", "speed", "--prompt-tokens", "20", "--tokens", "4", "--trials", "1", "--reference", "transformers")


def fake_torch(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A module that comes before an installed one in the child; the words that ask for it."""
    (folder / "torch.py").write_text(text)
    write_json(folder / "config.json", tiny_config("llama"))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("LATTICE_HOME", str(folder / "home"))
    return [*SPEED, "--random-weights", str(folder / "config.json"), "--dtype", "float32"]


def test_a_missing_package_is_one_sentence_whatever_libraries_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a library writes to stdout, by Python or beneath it, is no answer."""
    text = "import os\nprint('Hello')\nos.write(1, b'hello')\nraise ModuleNotFoundError(\"No module named 'torch'\")"
    words = fake_torch(tmp_path, text, monkeypatch)
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line for line in err.splitlines() if line.strip()] == [
        "error: `--reference transformers` needs torch and transformers, and No module named 'torch'",
        "hint: pip install torch transformers",
    ]


def test_the_child_ends_with_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stdin's end is its own, also where nobody could end it: here while it imports torch, and its parent dies."""
    pid_file = tmp_path / "pid"
    text = f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    words = fake_torch(tmp_path, text, monkeypatch)
    for number in (signal.SIGKILL, signal.SIGINT):
        pid_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "lattice_cli", *words]
        ours = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        until_s = time.monotonic() + WAIT_S
        while not (pid_file.exists() and pid_file.read_text()):
            assert time.monotonic() < until_s and ours.poll() is None
            time.sleep(0.02)
        ours.send_signal(number)
        ours.communicate(timeout=WAIT_S)
        assert ours.returncode in (-9, 130)
        gone(int(pid_file.read_text()))


# The real one.


@pytest.fixture(scope="module")
def torch_python() -> str:
    """An interpreter with both packages; asked in a process of its own, for torch and mlx do not meet in one."""
    python = os.environ.get("LATTICE_TORCH_PYTHON", sys.executable)
    try:
        subprocess.run([python, "-c", "import torch, transformers"], check=True, capture_output=True, timeout=300)
    except (OSError, subprocess.SubprocessError):
        pytest.skip(f"{python} has not both torch and transformers")
    return python


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "qwen3_5"])
def test_transformers_itself(
    tmp_path: Path, torch_python: str, architecture: Architecture, capsys: pytest.CaptureFixture[str]
) -> None:
    """A config alone and a folder: compiled, twice with the same cache and the same answer, in two shapes."""
    folder = write_tiny_folder(tmp_path / "tiny", architecture)
    random = RandomModel(folder / "config.json", dtype="bfloat16")
    for model in (random, ModelSource("tiny", folder, "folder")):
        with TransformersRival(model, 1, torch_python) as rival:
            rival.load()
            for rows, prompt_tokens, tokens in ((1, 70, 6), (2, 33, 2)):
                rival.prepare(Point(prompt_tokens, tokens, rows=rows))
                jobs = [job(prompt_tokens, tokens)] * rows
                first, again = rival.run(jobs), rival.run(jobs)
                assert [row.completion_tokens for row in (*first, *again)] == [tokens] * 2 * rows
                for trial in (Trial(tuple(first)), Trial(tuple(again))):
                    assert trial.prefill_rate and trial.decode_rate
        facts: dict[str, Any] = rival.facts
        assert [(shape["compile"], shape["failures"]) for shape in facts["shapes"]] == [("default", [])] * 2
        assert [shape["graph_breaks"] for shape in facts["shapes"]] == [0, 0]
        assert facts["network"].lower() == f"{architecture}forcausallm"
        assert facts["dtype"] == ("bfloat16" if model is random else "float32")
    assert "warming up for 2 row(s), 33 + 2 tokens" in capsys.readouterr().err


SAME = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("rival", sys.argv[1])
rival = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rival)
import torch
one = rival.Rival(lambda text: None)
one.open({"path": sys.argv[2], "random": False, "threads": 1})
one.load()
one.prepare({"rows": 2, "prompt_tokens": 70, "tokens": 12})
for seed in range(2):
    ids = torch.randint(0, 256, (2, 70), generator=torch.Generator().manual_seed(seed))
    found = one.trial({"prompts": ids.tolist(), "tokens": 12})["ids"]
    with torch.no_grad():
        wanted = one._network.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, eos_token_id=None
        )
    assert found == wanted[:, 70:].tolist(), (found, wanted[:, 70:].tolist())

def fail(*given, **named):
    raise RuntimeError("no compiler\\nfor a page of reasons")

torch.compile = fail
told = one.prepare({"rows": 2, "prompt_tokens": 70, "tokens": 12})
assert (told["compile"], told["failures"]) == (None, ["default: RuntimeError: no compiler"]), told
assert one.trial({"prompts": ids.tolist(), "tokens": 12})["ids"] == found
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("architecture", ["llama", "qwen3_5"])
def test_it_says_what_generate_says(tmp_path: Path, torch_python: str, architecture: Architecture) -> None:
    """A cache that is used again, or a mask that is left out, would be fast and wrong. Where nothing can be compiled,
    the same is said without, and why is told.
    """
    folder = write_tiny_folder(tmp_path / "tiny", architecture)
    program = script(tmp_path, SAME)
    words = [torch_python, str(program), rival_transformers.__file__, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
