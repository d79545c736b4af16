"""The native loops and blocks, each against a plain double-precision computation, without mlx and Python.

The programs are tests/kernels/native/*_test.cpp; their own lines say which loop failed on which shape.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import lattice_cli.kernels

SOURCES = Path(lattice_cli.kernels.__file__).parent / "native"
PROGRAMS = sorted(path.stem for path in (Path(__file__).parent / "native").glob("*_test.cpp"))
COMPILER = shutil.which("g++") or shutil.which("clang++")
FLAGS = ["-std=c++20", "-ffp-contract=fast", "-w", "-pthread", f"-I{SOURCES}"]

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 only")


@pytest.fixture(params=PROGRAMS)
def source(request: pytest.FixtureRequest) -> Path:
    return Path(__file__).parent / "native" / f"{request.param}.cpp"


def build(folder: Path, source: Path, *flags: str, compiler: str | None = COMPILER) -> Path:
    assert compiler is not None
    program = folder / source.stem
    done = subprocess.run(
        [compiler, *FLAGS, *flags, str(source), "-o", str(program)], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return program


def passes(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Path]]]:
    """Each compiled, as many at once as there are cores: ten seconds of a core each."""
    folder, sources = tmp_path_factory.mktemp("programs"), Path(__file__).parent / "native"
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield {name: pool.submit(build, folder, sources / f"{name}.cpp", "-O1") for name in PROGRAMS}


@pytest.mark.wire
@needs_compiler
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_loop_agrees_with_double_precision(programs: dict[str, Future[Path]], name: str) -> None:
    assert "0 failed" in passes(programs[name].result(), "40")


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_compiler
def test_every_loop_agrees_as_the_product_compiles_it(tmp_path: Path, source: Path) -> None:
    """A row's bits must not depend on its company at -O3 either, where the compiler reorders most."""
    assert "0 failed" in passes(build(tmp_path, source, "-O3"), "400")


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_compiler
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_sanitizers_find_nothing(tmp_path: Path, source: Path, sanitizer: str) -> None:
    program = build(tmp_path, source, "-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    assert "0 failed" in passes(program, "40")


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_compiler
@needs_x86
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="no qemu-x86_64: apt install qemu-user")
@pytest.mark.parametrize(("cpu", "best"), [("Nehalem", "plain C++"), ("Haswell", "AVX2")])
def test_an_older_processor_meets_no_illegal_instruction(tmp_path: Path, source: Path, cpu: str, best: str) -> None:
    out = passes("qemu-x86_64", "-cpu", cpu, build(tmp_path, source, "-O3"), "10")
    assert "0 failed" in out
    assert [line for line in out.splitlines() if line.startswith("testing")][-1] == f"testing {best}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None or shutil.which("aarch64-linux-gnu-g++") is None,
    reason="no aarch64 compiler and emulator: apt install qemu-user g++-aarch64-linux-gnu",
)
@pytest.mark.parametrize(("cpu", "best"), [("cortex-a53", "plain C++"), ("max", "NEON dot product")])
def test_arm_processors_agree_with_double_precision(tmp_path: Path, source: Path, cpu: str, best: str) -> None:
    program = build(tmp_path, source, "-O3", "-static", compiler=shutil.which("aarch64-linux-gnu-g++"))
    out = passes("qemu-aarch64", "-cpu", cpu, program, "10")
    assert "0 failed" in out
    assert [line for line in out.splitlines() if line.startswith("testing")][-1] == f"testing {best}"
