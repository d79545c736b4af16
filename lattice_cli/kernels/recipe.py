"""What the native kernels are made of and with: sources, flags, packages, tools, and the key that names the result.

The key is a hash of everything that shapes a module: our sources, the flags, and the versions of mlx, nanobind and
Python. No path is in it, so that one compiled elsewhere can be told to fit here. Knows compilers and packages; runs
nothing and writes nothing.

Thread: any
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.resources.abc import Traversable
from pathlib import Path

SOURCES = Path(__file__).parent / "native"
NAME = "lattice_cpu"
FILE = f"{NAME}{EXTENSION_SUFFIXES[0]}"
FLAGS = (
    *("-std=c++20", "-O3", "-ffp-contract=fast", "-shared", "-fPIC", "-fvisibility=hidden", "-w"),
    *("-DNB_DOMAIN=mlx", "-DNDEBUG", "-pthread"),
)
MLX = "0.32."  # the versions whose functions we stand in for; another one is tried, and has to prove itself
NANOBIND = "3."  # whose ABI mlx 0.32 was built with
TRIED_NANOBIND = "3.1.0"
GET_NANOBIND = f"pip install nanobind=={TRIED_NANOBIND}"


class Unbuildable(Exception):
    """Why there is no module, as a sentence without an end, and the command that helps where there is one."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Recipe:
    """One call of a compiler; `-o FILE` is to be added. `key` names the result: equal keys, equal modules."""

    key: str
    mlx: str
    nanobind: str
    command: tuple[str, ...]


def read_recipe() -> Recipe:
    """What would be compiled here. Cost: 5 ms. Raises: Unbuildable, with one command for all that is missing."""
    check_system()
    mlx = _package("mlx")
    nanobind = version("nanobind") or ""
    _check_tools(nanobind)
    if version("mlx").startswith(MLX) and not nanobind.startswith(NANOBIND):
        reason = f"mlx {version('mlx')} goes with nanobind {NANOBIND}*, and {nanobind} is installed"
        raise Unbuildable(reason, GET_NANOBIND)
    binder = _package("nanobind")
    include = (mlx / "include", binder / "include", binder / "ext/robin_map/include", sysconfig.get_path("include"))
    sources = (SOURCES / "cpu.cpp", binder / "src/nb_combined.cpp")
    paths = [f"-I{folder}" for folder in include] + [str(file) for file in sources]
    # No rpath: `import mlx.core` comes first, and the loader takes the libmlx that is there already.
    linked = [f"-L{mlx / 'lib'}", "-lmlx"]
    key = key_of(version("mlx"), nanobind)
    return Recipe(key, version("mlx"), nanobind, (_compiler() or "g++", *FLAGS, *paths, *linked))


def doubt() -> str | None:
    """What is uncertain here although nothing is missing, as a sentence."""
    found = version("mlx")
    if not found or found.startswith(MLX):
        return None
    return f"the native kernels know mlx {MLX}*, and this is {found}: they are tried, and compared with it first"


def check_system() -> None:
    """Raises: Unbuildable where there are no kernels for the system."""
    if sys.platform != "linux":
        raise Unbuildable("the native kernels are for Linux")


def key_of(mlx: str, nanobind: str, sources: Traversable = SOURCES) -> str:
    """The key of a module made with these versions from a folder of sources. Cost: 1 ms."""
    digest = hashlib.sha256()
    for file in sorted(sources.iterdir(), key=lambda file: file.name):
        if file.is_file() and not file.name.startswith("."):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    digest.update("\n".join((*FLAGS, mlx, nanobind, EXTENSION_SUFFIXES[0])).encode())
    return digest.hexdigest()[:20]


def version(name: str) -> str:
    """The version of an installed package; empty where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations or not version(name):
        raise Unbuildable(f"the package `{name}` is not installed")
    # mlx has no `__init__`, so any folder of that name on the path is a part of it: the one with headers is meant.
    for folder in map(Path, spec.submodule_search_locations):
        if (folder / "include").is_dir():
            return folder
    raise Unbuildable(f"the headers of `{name}` are not installed")


def _check_tools(nanobind: str) -> None:
    """Raises: Unbuildable that names everything missing, and one command line that brings it."""
    installer, compiler, headers = _system()
    wanted = (
        (_compiler() is not None, "no C++ compiler", compiler),
        ((Path(sysconfig.get_path("include")) / "Python.h").exists(), "no Python headers", headers),
    )
    lacking = [what for here, what, _ in wanted if not here]
    packages = [package for here, _, package in wanted if not here]
    commands = [f"{installer} {' '.join(packages)}"] if packages else []
    if not nanobind:
        lacking.append("no package `nanobind`")
        commands.append(GET_NANOBIND)
    if lacking:
        *first, last = lacking
        listed = f"{', '.join(first)} and {last}" if first else last
        raise Unbuildable(f"there is {listed} here", " && ".join(commands))


def _system() -> tuple[str, str, str]:
    """(installing command, package of the compiler, package of Python's headers)"""
    if shutil.which("dnf"):
        return "sudo dnf install", "gcc-c++", "python3-devel"
    return "sudo apt install", "g++", f"python{sys.version_info.major}.{sys.version_info.minor}-dev"


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
