"""When the native kernels can be had, and what is said when not: never a failure.

Compilers here are scripts, so that no test waits half a minute; what they leave is no module.

Thread: any
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from lattice_cli.kernels import build, native_choice, recipe, shelf
from lattice_cli.kernels.recipe import Unbuildable
from lattice_cli.settings import Home

pytestmark = [
    pytest.mark.pure,
    pytest.mark.skipif(sys.platform != "linux" or not recipe.version("nanobind"), reason="Linux with nanobind"),
]

LIMIT_S = 60
Compiler = Callable[[str], Path]
WRITE = 'for last; do :; done; echo "a module" > "$last"'


def home(path: Path, kernels: str = "exact") -> Home:
    return Home(path, path / "models", kernels=kernels)


def folder(path: Path) -> Path:
    return path / "kernels" / build.read_recipe().key


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """A `g++` before all others: it notes each call in the file that is returned, then runs a line of shell."""

    def make(line: str) -> Path:
        calls, script = tmp_path / "calls", tmp_path / "bin" / "g++"
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!/bin/sh\necho $$ >> {calls}\n{line}\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
        return calls

    return make


def never_tried(file: Path) -> str | None:
    raise AssertionError("there was nothing to try")


# What is missing.


def test_without_a_compiler_the_reason_is_a_sentence_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unbuildable, match=r"^there is no C\+\+ compiler here$") as caught:
        build.load(home(tmp_path))
    assert caught.value.hint == "sudo apt install g++"
    native = native_choice.choose(home(tmp_path))
    assert (native.module, native.reason) == (None, "there is no C++ compiler here")


def test_everything_that_is_missing_is_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told one by one, each would cost a start."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    versions(monkeypatch, nanobind=None)
    with pytest.raises(Unbuildable) as caught:
        build.read_recipe()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert str(caught.value) == "there is no C++ compiler, no Python headers and no package `nanobind` here"
    assert caught.value.hint == f"sudo apt install g++ python{python}-dev && pip install nanobind==3.1.0"


def versions(monkeypatch: pytest.MonkeyPatch, **given: str | None) -> None:
    """As if packages of other versions were installed."""
    real = metadata.version

    def version(name: str) -> str:
        found = given.get(name, real(name))
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "version", version)


def test_a_nanobind_that_cannot_fit_is_not_compiled_with(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler("exit 1")
    versions(monkeypatch, mlx="0.32.9", nanobind="2.9.2")
    with pytest.raises(Unbuildable, match=r"mlx 0\.32\.9 goes with nanobind 3\.\*, and 2\.9\.2 is installed") as caught:
        build.read_recipe()
    assert caught.value.hint == "pip install nanobind==3.1.0"


def test_an_unknown_mlx_is_tried_and_has_to_prove_itself(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = compiler(WRITE)
    versions(monkeypatch, mlx="0.33.0", nanobind="4.0.0")
    with caplog.at_level("WARNING", "lattice.kernels"), pytest.raises(Unbuildable, match="attention") as caught:
        build.make(home(tmp_path), trial=lambda _: "the compiled kernels compute otherwise than this mlx: attention")
    assert caught.value.hint == "pip install nanobind==3.1.0"
    doubt = "the native kernels know mlx 0.32.*, and this is 0.33.0: they are tried, and compared with it first"
    assert caplog.messages == [doubt]
    assert native_choice.look(home(tmp_path / "fresh")).reason == f"the next start compiles them; {doubt}"
    assert not (folder(tmp_path) / recipe.FILE).exists()
    assert len(calls.read_text().split()) == 1
    assert build.make(home(tmp_path / "other"), trial=lambda _: None).read_text() == "a module\n"


def test_a_folder_that_happens_to_be_called_mlx_is_not_taken_for_the_package(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mlx is a namespace package: a script that ran beside a folder `mlx` compiled against that."""
    compiler("exit 1")
    (tmp_path / "place" / "mlx").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "place")
    importlib.invalidate_caches()
    assert all(str(tmp_path / "place") not in part for part in build.read_recipe().command)


# The key.


def test_the_key_is_stable_and_follows_versions(compiler: Compiler) -> None:
    compiler("exit 1")
    first, second = build.read_recipe(), build.read_recipe()
    assert first == second
    assert first.key == recipe.key_of(first.mlx, first.nanobind)
    others = {first.key, recipe.key_of("0.32.999", first.nanobind), recipe.key_of(first.mlx, "3.999")}
    assert {len(key) for key in others} == {20}
    assert len(others) == 3


def test_a_module_names_no_place_of_this_machine(compiler: Compiler) -> None:
    """It must run from where a wheel is installed: on any processor, with the libmlx of that place."""
    compiler("exit 1")
    assert not [word for word in build.read_recipe().command if "rpath" in word or "-march" in word]


# Compiling.


def test_a_failed_compilation_is_not_tried_again_at_every_start(tmp_path: Path, compiler: Compiler) -> None:
    """Half a minute of compiling in vain before each answer would be worse than the slow path."""
    calls = compiler("echo 'cpu.cpp: no such thing' >&2; exit 1")
    failed = folder(tmp_path) / "failed.txt"
    with pytest.raises(Unbuildable, match=f"^compiling the native kernels failed, see `{failed}`$"):
        build.make(home(tmp_path), trial=never_tried)
    assert failed.read_text().endswith("cpu.cpp: no such thing\n")
    with pytest.raises(Unbuildable, match=f"^making the native kernels failed earlier, see `{failed}`$") as caught:
        build.make(home(tmp_path), trial=never_tried)
    assert caught.value.hint == "`lattice kernels build` tries again"
    assert str(build.obstacle(home(tmp_path))) == str(caught.value)
    assert len(calls.read_text().split()) == 1
    compiler(WRITE)
    build.forget_failure(home(tmp_path))
    build.make(home(tmp_path), trial=lambda _: None)
    assert not failed.exists()


def test_a_module_that_fails_its_trial_is_not_kept_and_remembered(tmp_path: Path, compiler: Compiler) -> None:
    calls = compiler(WRITE)
    for _ in range(2):
        with pytest.raises(Unbuildable):
            build.make(home(tmp_path), trial=lambda _: "the compiled kernels crash with this mlx (signal 11)")
    assert (folder(tmp_path) / "failed.txt").read_text().endswith("(signal 11)\n")
    assert [entry.made for entry in shelf.entries(tmp_path / "kernels")] == [False]
    assert len(calls.read_text().split()) == 1


def test_force_compiles_what_is_there(tmp_path: Path, compiler: Compiler) -> None:
    calls, said = compiler(WRITE), list[str]()
    for force in (False, False, True):
        build.make(home(tmp_path), said.append, force=force, trial=lambda _: None)
    assert len(calls.read_text().split()) == 2
    assert said == ["compiling the CPU kernels, once (about half a minute)"] * 2


def test_a_home_that_cannot_be_written_is_a_reason(tmp_path: Path, compiler: Compiler) -> None:
    compiler(WRITE)
    (tmp_path / "kernels").write_text("a file")
    with pytest.raises(Unbuildable, match=r"^the native kernels cannot be kept in `.*/kernels` \(File exists\)$"):
        build.make(home(tmp_path), trial=never_tried)


def test_a_compiler_that_cannot_be_run_is_a_reason(tmp_path: Path, compiler: Compiler) -> None:
    compiler(WRITE)
    (tmp_path / "bin" / "g++").write_text("#!/nowhere/sh\n")
    with pytest.raises(Unbuildable, match="cannot be run"):
        build.make(home(tmp_path), trial=never_tried)


# Two processes.

PROGRAM = """
import sys
from pathlib import Path
from lattice_cli.kernels import build
from lattice_cli.settings import Home
say = lambda line: print(line, flush=True)
print(build.make(Home(Path(sys.argv[1]), Path(sys.argv[1])), say, trial=lambda _: None))
"""


def maker(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def rest(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    return out.splitlines()


SLOW = """
n=0; while [ ! -e {gate} ] && [ $n -lt 600 ]; do n=$((n + 1)); sleep 0.1; done
for last; do :; done; echo "a module" > "$last"
"""


@pytest.mark.wire
def test_of_two_processes_one_compiles_and_both_have_the_module(tmp_path: Path, compiler: Compiler) -> None:
    calls, module = compiler(SLOW.format(gate=tmp_path / "gate")), folder(tmp_path) / recipe.FILE
    first = maker(tmp_path)
    assert line(first) == "compiling the CPU kernels, once (about half a minute)"
    second = maker(tmp_path)
    assert line(second) == "waiting for another process that compiles the CPU kernels"
    assert not module.exists()
    (tmp_path / "gate").touch()
    assert (rest(first), rest(second)) == ([str(module)], [str(module)])
    assert len(calls.read_text().split()) == 1
    assert sorted(file.name for file in module.parent.iterdir()) == [recipe.FILE, "made.json"]


@pytest.mark.wire
def test_a_process_that_is_killed_while_it_compiles_leaves_the_work_to_the_next(
    tmp_path: Path, compiler: Compiler
) -> None:
    calls, module = compiler(SLOW.format(gate=tmp_path / "gate")), folder(tmp_path) / recipe.FILE
    first = maker(tmp_path)
    line(first)
    second = maker(tmp_path)
    line(second)
    first.kill()
    first.communicate(timeout=LIMIT_S)
    assert line(second) == "compiling the CPU kernels, once (about half a minute)"
    (tmp_path / "gate").touch()
    assert rest(second) == [str(module)]
    assert len(calls.read_text().split()) == 2
    assert sorted(file.name for file in module.parent.iterdir()) == [recipe.FILE, "made.json"]
