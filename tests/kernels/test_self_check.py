"""The check that stands between a compiled module and an answer: it passes the right one and names what is wrong.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.kernels import build, native_choice, shelf
from lattice_cli.kernels.recipe import FILE, NAME, Unbuildable
from lattice_cli.kernels.self_check import differences, load_module, try_apart
from lattice_cli.settings import Home

pytestmark = [pytest.mark.tiny, pytest.mark.timeout(300)]

CACHE = Path(os.environ.get("LATTICE_TEST_CACHE", "~/.cache/lattice-tests")).expanduser()
HOME = Home(CACHE, CACHE / "models")


@pytest.fixture(scope="module")
def native() -> Any:
    """The compiled module, kept between runs: a compilation takes half a minute."""
    if build.obstacle(HOME) is not None and build.load_found(HOME) == (None, None):
        pytest.skip(str(build.obstacle(HOME)))
    return build.load(HOME)  # what nothing speaks against must work: no skip from here on


class Otherwise:
    """The module with one function that means something else, as under an mlx that we do not know."""

    def __init__(self, native: Any, name: str, function: Callable[..., Any]) -> None:
        self._native = native
        setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


def test_the_module_agrees_with_mlx(native: Any) -> None:
    assert differences(native) == []


def test_a_changed_meaning_is_named(native: Any) -> None:
    import mlx.core as mx

    def half(*arguments: Any, **named: Any) -> Any:
        return native.rms_norm(*arguments, **named).astype(mx.float16)

    def shifted(x: Any, weight: Any, digits: int) -> Any:
        return native.product(x if digits else x + 0.01, weight, digits)

    wrong: dict[str, tuple[str, Callable[..., Any]]] = {
        "product": ("product", shifted),
        "product in 8 bits": ("product", lambda x, w, digits: native.product(x, w, 0) * (mx.nan if digits == 1 else 1)),
        "rms_norm": ("rms_norm", half),
        "rope": ("rope", lambda *a, **k: native.rope(*a, **{**k, "offset": k["offset"] + 1})),
        "attention": ("sdpa", lambda *a, **k: native.sdpa(*a, scale=k["scale"])),
    }
    for expected, (name, function) in wrong.items():
        assert differences(Otherwise(native, name, function)) == [expected]


def test_mlxs_own_random_numbers_are_left_alone(native: Any) -> None:
    import mlx.core as mx

    mx.random.seed(7)
    first = mx.random.uniform(shape=(4,)).tolist()
    mx.random.seed(7)
    differences(native)
    assert mx.random.uniform(shape=(4,)).tolist() == first


def test_the_compiled_module_passes_in_a_process_of_its_own(native: Any) -> None:
    _, file = build.load_found(HOME)
    assert file is not None
    assert try_apart(file) is None


def test_a_file_that_is_no_module_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    (tmp_path / FILE).write_text("nothing")
    with pytest.raises(Unbuildable, match="the compiled kernels do not fit this mlx") as caught:
        load_module(tmp_path / FILE, 1)
    assert "\n" not in str(caught.value)
    assert try_apart(tmp_path / FILE) == str(caught.value)


@pytest.mark.skipif(build.obstacle(HOME) is not None, reason="nothing can be compiled here")
def test_a_module_that_no_longer_fits_is_passed_over_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file cut short, a libmlx that was exchanged: each start says so, and none compiles."""
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    made = build.read_recipe()
    folder = tmp_path / "kernels" / made.key
    folder.mkdir(parents=True)
    shelf.describe(folder, made)
    (folder / FILE).write_text("nothing")
    home = Home(tmp_path, tmp_path, kernels="exact")
    native = native_choice.choose(home)
    assert native.module is None
    assert native.reason.startswith("the compiled kernels do not fit this mlx (")
    found = native_choice.look(home)
    assert (found.reason, found.lacking) == (native.reason, True)
    assert found.hint == "`lattice kernels build --force` compiles them anew"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
def test_a_module_that_crashes_does_so_elsewhere(tmp_path: Path) -> None:
    """What a wrong ABI may do: without the trial it would end `lattice serve`."""
    source = tmp_path / "crash.cpp"
    source.write_text(f'extern "C" void* PyInit_{NAME}() {{ __builtin_trap(); }}\n')
    subprocess.run(["g++", "-shared", "-fPIC", str(source), "-o", str(tmp_path / FILE)], check=True, timeout=60)
    assert (try_apart(tmp_path / FILE) or "").startswith("the compiled kernels crash with this mlx (signal ")
