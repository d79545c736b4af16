"""`lattice kernels`: what it prints, what it removes, and how it fails.

Thread: any
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lattice_cli.errors import LatticeError
from lattice_cli.kernels import build, recipe, shelf
from lattice_cli.kernels.machine import installed_backends
from lattice_cli.manage.kernels import kernels_clean
from lattice_cli.settings import Home
from tests.kernels.test_shelf import MLX, put

LINUX_CPU = sys.platform == "linux" and installed_backends() == {"mlx-cpu"}
needs_linux_cpu = pytest.mark.skipif(not LINUX_CPU, reason="the kernels are for a Linux CPU")
CACHE = Path(os.environ.get("LATTICE_TEST_CACHE", "~/.cache/lattice-tests")).expanduser()


def lattice(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `lattice kernels ...`."""
    return subprocess.run(
        [sys.executable, "-m", "lattice_cli", "kernels", *arguments],
        env={**os.environ, "LATTICE_KERNELS": "exact", "LATTICE_HOME": str(home), "LATTICE_THREADS": "", **environment},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )


# Clean.


@pytest.mark.pure
@pytest.mark.skipif(sys.platform != "linux", reason="the kernels are for Linux")
def test_clean_removes_what_fits_nothing_here_and_all_removes_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, root = Home(tmp_path, tmp_path / "models"), tmp_path / "kernels"
    ours = put(root, MLX, "3.1.0")
    others = [put(root, "0.31.0", "3.1.0"), put(root, MLX, "3.1.0", "0" * 20)]
    (root / "mine.txt").write_text("not ours")
    sizes = [sum(file.stat().st_size for file in folder.iterdir()) for folder in others]
    assert kernels_clean(home) == sum(sizes)
    assert sorted(root.iterdir()) == sorted([ours, root / "build.lock", root / "mine.txt"])
    assert kernels_clean(home) == 0
    assert kernels_clean(home, everything=True) > 1000
    assert sorted(root.iterdir()) == [root / "build.lock", root / "mine.txt"]
    assert capsys.readouterr() == (
        "",
        "removed 2 compiled modules: 2 kB are free now\n"
        "no compiled module is to be removed\n"
        "removed 1 compiled module: 1 kB are free now\n",
    )


@pytest.mark.pure
def test_clean_makes_nothing_where_nothing_is(tmp_path: Path) -> None:
    assert kernels_clean(Home(tmp_path / "home", tmp_path)) == 0
    assert not (tmp_path / "home").exists()


@pytest.mark.pure
@pytest.mark.skipif(sys.platform != "linux", reason="the kernels are for Linux")
def test_what_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = put(tmp_path / "kernels", "0.31.0", "3.1.0")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(LatticeError, match=f"^`{folder}` cannot be removed: Permission denied$"):
        kernels_clean(Home(tmp_path, tmp_path))


# Status and build.


@pytest.mark.wire
@needs_linux_cpu
def test_status_says_why_there_are_none_and_the_command(tmp_path: Path) -> None:
    done = lattice(tmp_path, "status", PATH=str(tmp_path), LATTICE_THREADS="7")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "what          found",
        "kernels       none: there is no C++ compiler here",
        "hint          sudo apt install g++",
        "instructions  -",
        "mode          exact",
        "threads       7, always",
        f"kept in       {tmp_path / 'kernels'}",
        "size          0 kB",
    ]


@pytest.mark.wire
@needs_linux_cpu
def test_build_without_a_compiler_is_one_sentence_and_status_3(tmp_path: Path) -> None:
    done = lattice(tmp_path, "build", PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "error: there is no C++ compiler here\n\nhint: sudo apt install g++\n"


@pytest.mark.wire
@needs_linux_cpu
def test_a_compilation_that_fails_is_shown_and_tried_again_by_build(tmp_path: Path) -> None:
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text(f"#!/bin/sh\necho x >> {tmp_path}/calls\necho 'cpu.cpp: no' >&2\nexit 1\n")
    compiler.chmod(0o755)
    path = f"{compiler.parent}:{os.environ['PATH']}"
    failed = tmp_path / "kernels" / build.read_recipe().key / "failed.txt"
    for _ in range(2):
        done = lattice(tmp_path, "build", PATH=path)
        assert done.returncode == 3
        assert done.stderr.splitlines() == [
            "compiling the CPU kernels, once (about half a minute)",
            f"error: compiling the native kernels failed, see `{failed}`",
            "",
            "hint: `lattice kernels build` tries again",
        ]
    assert len((tmp_path / "calls").read_text().split()) == 2
    said = json.loads(lattice(tmp_path, "status", "--json", PATH=path).stdout)
    assert said["reason"] == f"making the native kernels failed earlier, see `{failed}`"
    assert said["hint"] == "`lattice kernels build` tries again"
    assert [kept["state"] for kept in said["kept"]] == ["failed"]
    assert len((tmp_path / "calls").read_text().split()) == 2


@pytest.mark.tiny
@pytest.mark.timeout(300)
@needs_linux_cpu
def test_status_of_a_compiled_module(tmp_path: Path) -> None:
    """The one kept between runs; build says that it is there."""
    home = Home(CACHE, CACHE / "models")
    if build.obstacle(home) is not None and build.load_found(home) == (None, None):
        pytest.skip(str(build.obstacle(home)))
    isa = build.load(home).isa()
    (tmp_path / "kernels").symlink_to(CACHE / "kernels")
    said = json.loads(lattice(tmp_path, "status", "--json", LATTICE_KERNELS="fast").stdout)
    key = next(entry.key for entry in shelf.fitting(home))
    assert (said["instructions"], said["mode"], said["hint"], said["reason"]) == (isa, "fast", None, "compiled here")
    assert said["module"] == str(tmp_path / "kernels" / key / recipe.FILE)
    assert {kept["key"]: kept["state"] for kept in said["kept"]}[key] == "fits"
    done = lattice(tmp_path, "build")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"the kernels are in `{said['module']}`: nothing is to be done\n"
