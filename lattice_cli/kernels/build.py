"""The native kernels as a Python module: compiled on first use with the system's compiler, kept in our home.

A compiled module lies in `LATTICE_HOME/kernels/KEY/`, where KEY is a hash of everything that shaped it: our
sources, the flags, and the versions of mlx, nanobind and Python. It is written under another name first and
renamed, and a lock lets a second process wait for the first instead of compiling too. Knows compilers and
files; knows no model. Whatever goes wrong is a sentence, never a failure: the slower path remains.

Thread: worker
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path
from typing import Any

from lattice_cli.settings import Home

log = logging.getLogger("lattice.kernels")

SOURCES = Path(__file__).parent / "native"
NAME = "lattice_cpu"
FLAGS = (
    *("-std=c++20", "-O3", "-ffp-contract=fast", "-shared", "-fPIC", "-fvisibility=hidden", "-w"),
    *("-DNB_DOMAIN=mlx", "-DNDEBUG", "-pthread"),
)
COMPILE_LIMIT_S = 600
_MLX = "0.32."  # the versions whose functions we stand in for
_NANOBIND = "3."  # the one whose ABI mlx 0.32 was built with
HOW_TO_GET = "sudo apt install g++ python3-dev && pip install nanobind==3.1.0"


class Unbuildable(Exception):
    """Why there is no module, as a sentence without an end."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One g++ call. `key` names the result: equal keys, equal modules."""

    key: str
    command: tuple[str, ...]


def load(home: Home, say: Any = None) -> Any:
    """The module, compiled if need be. Cost: 5 ms, the first time 20-60 s on one core.

    `say` is called with one line before a compilation. Raises: Unbuildable.
    """
    if sys.platform != "linux":
        raise Unbuildable("the native kernels are for Linux")
    recipe = read_recipe()
    file = module_file(home, recipe)
    if not file.exists():
        _build_once(home, recipe, file, say)
    return _import(file)


def obstacle(home: Home) -> str | None:
    """What keeps the module from being used or compiled here; None: nothing known. Compiles nothing. Cost: 5 ms."""
    try:
        recipe = read_recipe()
        file = module_file(home, recipe)
        if not file.exists():
            _check_tools(recipe)
            if (file.parent / "failed.txt").exists():
                return f"compiling them failed earlier, see `{file.parent / 'failed.txt'}`"
    except Unbuildable as reason:
        return str(reason)
    return None


def _check_tools(recipe: Recipe) -> None:
    if shutil.which(recipe.command[0]) is None:
        raise Unbuildable("no C++ compiler was found")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise Unbuildable("Python's headers are not installed")


def module_file(home: Home, recipe: Recipe) -> Path:
    """Where the module of a recipe lies."""
    return home.root / "kernels" / recipe.key / f"{NAME}{EXTENSION_SUFFIXES[0]}"


def read_recipe() -> Recipe:
    """What would be compiled here. Raises: Unbuildable."""
    mlx, nanobind = _package("mlx", _MLX), _package("nanobind", _NANOBIND)
    headers = sysconfig.get_path("include")
    include = (mlx / "include", nanobind / "include", nanobind / "ext/robin_map/include", Path(headers))
    sources = (SOURCES / "cpu.cpp", nanobind / "src/nb_combined.cpp")
    library = mlx / "lib"
    digest = hashlib.sha256()
    for file in sorted(SOURCES.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    versions = [importlib.metadata.version(name) for name in ("mlx", "nanobind")]
    digest.update("\n".join((*FLAGS, *versions, EXTENSION_SUFFIXES[0], str(library))).encode())
    paths = [f"-I{folder}" for folder in include] + [str(file) for file in sources]
    linked = [f"-L{library}", "-lmlx", f"-Wl,-rpath,{library}"]
    return Recipe(digest.hexdigest()[:20], (_compiler(), *FLAGS, *paths, *linked))


def _package(name: str, versions: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise Unbuildable(f"the package `{name}` is not installed")
    found = importlib.metadata.version(name)
    if not found.startswith(versions):
        raise Unbuildable(f"the native kernels know {name} {versions}*, and {found} is installed")
    # mlx has no `__init__`, so any folder of that name on the path is a part of it: the one with headers is meant.
    for folder in map(Path, spec.submodule_search_locations):
        if (folder / "include").is_dir():
            return folder
    raise Unbuildable(f"the headers of `{name}` are not installed")


def _compiler() -> str:
    for name in ("g++", "clang++", "c++"):
        if found := shutil.which(name):
            return found
    return "g++"  # a module compiled earlier can still be used; compiling says what is missing


def _build_once(home: Home, recipe: Recipe, file: Path, say: Any) -> None:
    """Compile unless another process does or did, or this recipe failed before. Raises: Unbuildable."""
    failed = file.parent / "failed.txt"
    try:
        with _lock(home.root / "kernels"):
            if file.exists():
                return
            if failed.exists():
                raise Unbuildable(f"compiling the native kernels failed earlier, see `{failed}`")
            file.parent.mkdir(parents=True, exist_ok=True)
            _build(recipe, file, failed, say)
    except OSError as error:
        raise Unbuildable(f"the native kernels cannot be stored in `{home.root}` ({error})") from error


def _build(recipe: Recipe, file: Path, failed: Path, say: Any) -> None:
    _check_tools(recipe)
    if say is not None:
        say("compiling the CPU kernels, once (about half a minute)")
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        try:
            done = subprocess.run(
                [*recipe.command, "-o", str(made)], capture_output=True, text=True, timeout=COMPILE_LIMIT_S
            )
        except subprocess.TimeoutExpired as error:
            raise Unbuildable("the compiler did not end") from error
        if done.returncode != 0:
            failed.write_text(" ".join(recipe.command) + "\n\n" + done.stderr)
            raise Unbuildable(f"compiling the native kernels failed, see `{failed}`")
        os.replace(made, file)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One process at a time; the operating system lets go when a process dies."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _import(file: Path) -> Any:
    """Import and try the module: a wrong ABI shows when it meets an array. Raises: Unbuildable."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    import mlx.core as mx

    try:
        loader = ExtensionFileLoader(NAME, str(file))
        spec = importlib.util.spec_from_loader(NAME, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        module.rms_norm(mx.zeros((1, 1)), None, 1e-5)
    except (ImportError, TypeError, AttributeError) as error:
        raise Unbuildable(f"the compiled kernels do not fit this mlx ({error})".replace("\n", " ")) from error
    sys.modules[NAME] = module
    return module
