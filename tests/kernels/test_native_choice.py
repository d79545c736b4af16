"""Which kernels and how many threads a command gets: the option, else the variable, down to the libraries.

Each case runs in a process of its own: a team of threads and a loaded library stay for a process's life.

Thread: any
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lattice_cli.kernels.limits import usable_cores
from lattice_cli.kernels.machine import installed_backends
from tests.serve.process import Process
from tests.tiny import write_tiny_folder

pytestmark = [
    pytest.mark.wire,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        sys.platform != "linux" or installed_backends() != {"mlx-cpu"}, reason="the kernels are for a Linux CPU"
    ),
]

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("LATTICE_TEST_CACHE", "~/.cache/lattice-tests")).expanduser()
MANY = usable_cores() + 3
CROWDED = f"WARNING lattice.kernels: {MANY} threads for {usable_cores()} usable cores: they will wait for each other"


def python(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def lattice(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lattice_cli", *arguments],
        env={**os.environ, "LATTICE_HOME": str(home), **environment},
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


# Libraries.

BLAS = """
from pathlib import Path
from lattice_cli.kernels import blas
from lattice_cli.settings import Home
report = blas.preload(Home(Path("/nowhere"), Path("/nowhere"), threads={threads}))
report.fit_threads()
print(report.library.openblas_get_num_threads(), report.name, report == blas.preload(Home(Path("/"), Path("/"))))
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_a_count_that_was_asked_for_bounds_blas_whatever_its_own_variable_says(threads: int) -> None:
    assert python(BLAS.format(threads=threads), OPENBLAS_NUM_THREADS="2").split() == [str(threads), "OpenBLAS", "True"]


def test_without_a_count_blas_keeps_what_its_own_variable_says() -> None:
    assert python(BLAS.format(threads=None), OPENBLAS_NUM_THREADS="1").split()[0] == "1"


TEAM = """
import os
from pathlib import Path
from lattice_cli.kernels import build, native_choice
from lattice_cli.settings import Home
import mlx.core as mx
mx.eval(mx.quantize(mx.ones((8, 64)), 64, 4))
before = len(os.listdir("/proc/self/task"))
home = Home(Path({cache!r}), Path({cache!r}), kernels="exact", threads={threads})
native = native_choice.choose(home)
native.fit_threads()
print(len(os.listdir("/proc/self/task")) - before if native.module else "none")
"""


def test_the_team_has_the_threads_that_were_asked_for() -> None:
    """The caller is one of them: a team of five starts four."""
    started = [python(TEAM.format(cache=str(CACHE), threads=threads)).strip() for threads in (1, 5)]
    if "none" in started:
        pytest.skip("the kernels cannot be had here")
    assert int(started[1]) - int(started[0]) == 4


# Commands.


def test_bench_speed_takes_both_and_records_them(tmp_path: Path) -> None:
    model = write_tiny_folder(tmp_path / "tiny")
    plan = ("--prompt-tokens", "8", "--max-tokens", "4", "--trials", "1", "--warmups", "0")
    wanted = ("--kernels", "off", "--threads", str(MANY))
    done = lattice(tmp_path, "bench", "speed", "--model", str(model), *plan, *wanted, LATTICE_KERNELS="exact")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    assert (record["kernels"], record["threads"]) == ("the native kernels are off", MANY)
    assert done.stderr.splitlines().count(CROWDED) == 1
    assert not (tmp_path / "kernels").exists()


def test_chat_takes_both_and_the_option_wins_over_the_variable(tmp_path: Path) -> None:
    """Without a compiler the mode shows in what is said; the answer comes all the same."""
    model = write_tiny_folder(tmp_path / "tiny")
    ask = ("chat", "--quiet", "--model", str(model), "--prompt", "hi", "--max-tokens", "2")
    (tmp_path / "empty").mkdir()
    variables = {"LATTICE_KERNELS": "off", "LATTICE_THREADS": "1", "PATH": str(tmp_path / "empty")}
    done = lattice(tmp_path, *ask, "--kernels", "exact", "--threads", str(MANY), **variables)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert done.stderr.splitlines() == [
        CROWDED,
        "WARNING lattice.kernels: there is no C++ compiler here; computing through BLAS instead. "
        "To get them: sudo apt install g++",
    ]
    quiet = lattice(tmp_path, *ask, **variables)
    assert (quiet.returncode, quiet.stderr) == (0, "")


def test_serve_takes_both(tmp_path: Path) -> None:
    model = write_tiny_folder(tmp_path / "tiny")
    wanted = ("--kernels", "off", "--threads", str(MANY))
    with Process(tmp_path, "--model", str(model), "--port", "0", *wanted, LATTICE_KERNELS="exact") as process:
        process.port()
        assert CROWDED in process.talk().splitlines()
    assert not (tmp_path / "kernels").exists()
