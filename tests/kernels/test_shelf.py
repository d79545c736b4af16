"""Which compiled modules fit what is installed here, without loading one.

Thread: any
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lattice_cli.kernels import recipe, shelf
from lattice_cli.settings import Home

pytestmark = pytest.mark.pure

MLX = recipe.version("mlx")


def put(root: Path, mlx: str, nanobind: str, key: str | None = None) -> Path:
    """A folder as compiling leaves it, with a file for a module."""
    folder = root / (key or recipe.key_of(mlx, nanobind))
    folder.mkdir(parents=True)
    (folder / shelf.MADE).write_text(json.dumps({"mlx": mlx, "nanobind": nanobind}))
    (folder / recipe.FILE).write_bytes(bytes(1000))
    return folder


def test_a_module_fits_by_its_key_whatever_nanobind_is_installed(tmp_path: Path) -> None:
    """nanobind is needed to compile, and not to run: a wheel's module must be found where it is missing."""
    home = Home(tmp_path, tmp_path / "models")
    ours = put(tmp_path / "kernels", MLX, "3.0.7")
    put(tmp_path / "kernels", "0.31.0", "3.0.7")  # another mlx
    put(tmp_path / "kernels", MLX, "3.1.0", "0" * 20)  # other sources
    put(tmp_path / "kernels", MLX, "3.1.0", "not-a-key")
    (tmp_path / "kernels" / "build.lock").touch()
    assert [entry.file for entry in shelf.fitting(home)] == [ours / recipe.FILE]
    assert sorted((entry.fits, entry.made, entry.mlx) for entry in shelf.entries(tmp_path / "kernels")) == [
        (False, True, "0.31.0"),
        (False, True, MLX),
        (True, True, MLX),
    ]


def test_what_is_damaged_or_unfinished_does_not_fit_and_is_listed(tmp_path: Path) -> None:
    broken = put(tmp_path, MLX, "3.1.0")
    (broken / shelf.MADE).write_text("{")
    failed = put(tmp_path, MLX, "3.2.0")
    (failed / recipe.FILE).rename(failed / shelf.FAILED)
    seen = {entry.key: (entry.fits, entry.made, entry.failed) for entry in shelf.entries(tmp_path)}
    assert seen == {broken.name: (False, True, False), failed.name: (True, False, True)}
    assert list(shelf.entries(tmp_path / "nowhere")) == []


def test_removing_tells_what_is_free(tmp_path: Path) -> None:
    folder = put(tmp_path, MLX, "3.1.0")
    (entry,) = shelf.entries(tmp_path)
    assert shelf.remove(entry) == 1000 + len(json.dumps({"mlx": MLX, "nanobind": "3.1.0"}))
    assert not folder.exists()
