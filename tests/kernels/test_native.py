"""The native loops, each against a plain double-precision computation, without mlx and Python.

The programs are loops_test.cpp and delta_test.cpp in tests/kernels/native; their own lines say which loop failed on
which shape.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import lattice_cli.kernels

SOURCES = Path(lattice_cli.kernels.__file__).parent / "native"
PROGRAMS = Path(__file__).parent / "native"
COMPILER = shutil.which("g++") or shutil.which("clang++")
FLAGS = ["-std=c++20", "-ffp-contract=fast", "-w", "-pthread", f"-I{SOURCES}"]

each_program = pytest.mark.parametrize("name", ["loops_test", "delta_test"])
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 only")


def build(folder: Path, name: str, *flags: str, compiler: str | None = COMPILER) -> Path:
    assert compiler is not None
    program = folder / name
    done = subprocess.run(
        [compiler, *FLAGS, *flags, str(PROGRAMS / f"{name}.cpp"), "-o", str(program)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return program


def passes(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


@pytest.mark.wire
@needs_compiler
@each_program
def test_every_loop_agrees_with_double_precision(tmp_path: Path, name: str) -> None:
    assert "0 failed" in passes(build(tmp_path, name, "-O2"), "40")


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_compiler
@each_program
def test_every_loop_agrees_as_the_product_compiles_it(tmp_path: Path, name: str) -> None:
    """A row's bits must not depend on its company at -O3 either, where the compiler reorders most."""
    assert "0 failed" in passes(build(tmp_path, name, "-O3"), "400")


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_compiler
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
@each_program
def test_the_sanitizers_find_nothing(tmp_path: Path, name: str, sanitizer: str) -> None:
    program = build(tmp_path, name, "-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    assert "0 failed" in passes(program, "40")


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_compiler
@needs_x86
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="no qemu-x86_64: apt install qemu-user")
@pytest.mark.parametrize(("cpu", "best"), [("Nehalem", "plain C++"), ("Haswell", "AVX2")])
@each_program
def test_an_older_processor_meets_no_illegal_instruction(tmp_path: Path, name: str, cpu: str, best: str) -> None:
    out = passes("qemu-x86_64", "-cpu", cpu, build(tmp_path, name, "-O3"), "10")
    assert "0 failed" in out
    assert [line for line in out.splitlines() if line.startswith("testing")][-1] == f"testing {best}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None or shutil.which("aarch64-linux-gnu-g++") is None,
    reason="no aarch64 compiler and emulator: apt install qemu-user g++-aarch64-linux-gnu",
)
@pytest.mark.parametrize(("cpu", "best"), [("cortex-a53", "plain C++"), ("max", "NEON dot product")])
@each_program
def test_arm_processors_agree_with_double_precision(tmp_path: Path, name: str, cpu: str, best: str) -> None:
    program = build(tmp_path, name, "-O3", "-static", compiler=shutil.which("aarch64-linux-gnu-g++"))
    out = passes("qemu-aarch64", "-cpu", cpu, program, "10")
    assert "0 failed" in out
    assert [line for line in out.splitlines() if line.startswith("testing")][-1] == f"testing {best}"
