"""When the native kernels can be had, and what is said when not: never a failure.

Thread: any
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from lattice_cli.errors import UsageError
from lattice_cli.kernels import build, native_choice
from lattice_cli.settings import Home, read_home

pytestmark = pytest.mark.pure


def home(path: Path, kernels: str = "exact") -> Home:
    return Home(path, path / "models", kernels=kernels)


def test_without_a_compiler_the_reason_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nanobind")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.obstacle(home(tmp_path)) == "no C++ compiler was found"
    with pytest.raises(build.Unbuildable, match="no C\\+\\+ compiler was found"):
        build.load(home(tmp_path))
    assert native_choice.choose(home(tmp_path)).module is None


def test_a_failed_compilation_is_not_tried_again_at_every_start(tmp_path: Path) -> None:
    """Half a minute of compiling in vain before each answer would be worse than the slow path."""
    pytest.importorskip("nanobind")
    failed = build.module_file(home(tmp_path), build.read_recipe()).parent / "failed.txt"
    failed.parent.mkdir(parents=True)
    failed.write_text("g++ said no")
    with pytest.raises(build.Unbuildable, match="failed earlier"):
        build.load(home(tmp_path))


def test_the_key_follows_the_sources_and_is_stable() -> None:
    pytest.importorskip("nanobind")
    first, second = build.read_recipe(), build.read_recipe()
    assert first == second
    assert len(first.key) == 20
    assert "-march=native" not in first.command


def test_the_setting() -> None:
    assert read_home({}).kernels == "exact"
    assert read_home({"LATTICE_KERNELS": "off"}).kernels == "off"
    assert native_choice.choose(home(Path("/nowhere"), "off")).module is None
    with pytest.raises(UsageError, match="must be `off`, `exact` or `fast`"):
        native_choice.choose(home(Path("/nowhere"), "maybe"))


def test_a_folder_that_happens_to_be_called_mlx_is_not_taken_for_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mlx is a namespace package: a script that ran beside a folder `mlx` compiled against that."""
    pytest.importorskip("nanobind")
    (tmp_path / "mlx").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert all(str(tmp_path) not in part for part in build.read_recipe().command)
