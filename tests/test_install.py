"""From a bare machine to a running command: the Makefile's choices, and the wheel in a fresh environment.

Thread: any
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYTHONS = ("python3", "python3.13", "python3.12", "python3.11")


def venv_sh(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """scripts/venv.sh with the commands in tmp_path/bin before all others."""
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "EXTRA", "VENV")}
    return subprocess.run(
        ["sh", str(ROOT / "scripts/venv.sh"), *arguments],
        env=known | {"PATH": path, "VENV": str(tmp_path / "venv")} | environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )


def command(tmp_path: Path, name: str, script: str) -> None:
    file = tmp_path / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.mark.wire
@pytest.mark.parametrize(
    ("system", "driver", "extra"),
    [
        ("Darwin", "exit 1", ""),
        ("Linux", "exit 1", "cpu"),
        ("Linux", "echo 'NVIDIA-SMI has failed'; exit 9", "cpu"),
        ("Linux", "echo 470.82.01", "cpu"),
        ("Linux", "echo 550.54.15", "cuda12"),
        ("Linux", "echo 580.65.06; echo 580.65.06", "cuda13"),
    ],
)
def test_the_extra_fits_the_machine(tmp_path: Path, system: str, driver: str, extra: str) -> None:
    command(tmp_path, "uname", f"echo {system}")
    command(tmp_path, "nvidia-smi", driver)
    assert venv_sh(tmp_path, "extra").stdout.strip() == extra


@pytest.mark.wire
def test_a_python_too_old_is_one_sentence(tmp_path: Path) -> None:
    """Report 141: a clear minimum instead of pip's `no matching distribution`."""
    for name in PYTHONS:
        command(tmp_path, name, '[ "$1" = -V ] && echo "Python 3.9.2" && exit 0; exit 1')
    done = venv_sh(tmp_path, "run", EXTRA="cpu")
    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == "error: lattice needs Python 3.11 or newer, and here is Python 3.9.2"
    assert done.stderr.splitlines()[2].startswith("hint: ")
    assert not (tmp_path / "venv").exists()


@pytest.mark.wire
def test_a_newer_python_beside_an_old_one_is_found(tmp_path: Path) -> None:
    command(tmp_path, "python3", '[ "$1" = -V ] && echo "Python 3.9.2" && exit 0; exit 1')
    for name in PYTHONS[1:]:
        command(tmp_path, name, f'case "$*" in *ensurepip*) exit 1;; -V) echo "Python of {name}";; esac')
    done = venv_sh(tmp_path, "run", EXTRA="cpu")
    assert done.stderr.startswith("error: Python of python3.13 cannot make virtual environments")


@pytest.mark.wire
def test_a_missing_venv_module_is_one_sentence_with_the_command(tmp_path: Path) -> None:
    command(tmp_path, "python3", 'case "$*" in *ensurepip*) exit 1;; -V) echo "Python 3.11.2";; esac')
    done = venv_sh(tmp_path, "run", EXTRA="cpu")
    assert done.returncode == 3
    assert done.stderr == (
        "error: Python 3.11.2 cannot make virtual environments: its `venv` module is missing\n\n"
        "hint: `sudo apt install python3-venv` (Debian, Ubuntu), or `make PYTHON=/path/to/python3.13 ...`\n"
    )


@pytest.mark.wire
def test_an_intel_python_on_apple_silicon_is_named(tmp_path: Path) -> None:
    """Report 141: pip would say `no matching distribution found for mlx`."""
    command(tmp_path, "python3", 'case "$*" in *machine*) echo x86_64;; esac')
    command(tmp_path, "sysctl", "echo 1")
    done = venv_sh(tmp_path, "run", EXTRA="")
    assert done.returncode == 3
    assert done.stderr.startswith("error: `python3` is an Intel Python on an Apple-silicon Mac")


@pytest.mark.wire
def test_a_python_that_is_named_and_wrong_is_refused(tmp_path: Path) -> None:
    done = venv_sh(tmp_path, "run", EXTRA="cpu", PYTHON="/nowhere/python")
    assert done.returncode == 3
    assert done.stderr.startswith("error: `/nowhere/python` is no Python 3.11 or newer")


def bash(line: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("LATTICE_", "PYTHON"))}
    return subprocess.run(
        ["sh", "-c", line], cwd=cwd, env=keep | environment, capture_output=True, text=True, timeout=900
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_wheel_runs_in_a_fresh_environment_first_without_and_then_with_a_back_end(tmp_path: Path) -> None:
    """Report 139: a plain install on Linux has no back end; help, errors and scripted models must work all the same."""
    from tests.tiny import write_tiny_folder

    (tmp_path / "script.json").write_text(json.dumps({"replies": [{"tokens": ["Par", "is"]}]}))
    model = write_tiny_folder(tmp_path / "tiny", "llama")
    one_shot = f"{tmp_path}/venv/bin/lattice chat --quiet --prompt France --model"
    home = {"LATTICE_HOME": str(tmp_path / "home")}

    def ran(line: str) -> tuple[int, str]:
        done = bash(line, tmp_path, **home)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout

    def installed(what: str) -> None:
        done = bash(f"venv/bin/python -m pip install -q {what}", tmp_path)
        assert done.returncode == 0, done.stderr

    built = bash(f"{sys.executable} -m pip wheel -q --no-deps -w {tmp_path} {ROOT}", tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("lattice_cli-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        assert "lattice_cli/py.typed" in opened.namelist()
    assert bash(f"{sys.executable} -m venv venv", tmp_path).returncode == 0

    installed(f"{wheel}")
    if sys.platform == "linux":
        assert ran("venv/bin/lattice --help")[0] == 0
        assert ran(f"{one_shot} script:script.json") == (0, "Paris\n")
        done = bash(f"{one_shot} {model}", tmp_path, **home)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr == "error: MLX has no back end here\n\nhint: pip install 'lattice-cli[cpu]'\n"
        assert ran("venv/bin/lattice doctor")[0] == 1
        installed(f"'{wheel}[cpu]'")
    assert ran("venv/bin/lattice --help")[0] == 0
    assert ran("venv/bin/lattice --version")[0] == 0
    assert ran(f"{one_shot} script:script.json") == (0, "Paris\n")
    assert ran(f"{one_shot} {model} --max-tokens 4")[0] == 0
