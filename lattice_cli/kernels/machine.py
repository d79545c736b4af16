"""The facts of this machine that decide whether mlx can run: system, packages, driver.

Knows where to read them; decides nothing.

Thread: any
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Version = tuple[int, ...]

_BACKENDS = ("mlx-cpu", "mlx-cuda-12", "mlx-cuda-13", "mlx-metal")


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts the decision rests on; None where a fact does not apply or could not be found.

    `translated`: an x86 process under Rosetta; `backends`: installed mlx back-end packages;
    `driver`: the NVIDIA driver.
    """

    system: str
    arch: str
    backends: frozenset[str]
    translated: bool = False
    macos: Version | None = None
    glibc: Version | None = None
    driver: Version | None = None


@cache
def read_machine() -> Machine:
    """The facts of this machine. Cost: 2 ms; with an NVIDIA driver that /proc does not show, 100 ms."""
    system, arch = platform.system(), platform.machine()
    arch = {"arm64": "aarch64", "amd64": "x86_64"}.get(arch.lower(), arch) if system == "Linux" else arch
    return Machine(
        system=system,
        arch=arch,
        backends=installed_backends(),
        translated=system == "Darwin" and _sysctl("sysctl.proc_translated") == "1",
        macos=_version(platform.mac_ver()[0]) if system == "Darwin" else None,
        glibc=_glibc() if system == "Linux" else None,
        driver=_driver() if system == "Linux" else None,
    )


@cache
def installed_backends() -> frozenset[str]:
    """The mlx back-end packages of this environment; {"mlx"} where mlx was built with its back end inside."""
    spec = importlib.util.find_spec("mlx")
    return find_backends(sys.path, [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else [])


def find_backends(search_path: Sequence[str], mlx_folders: Sequence[Path]) -> frozenset[str]:
    """The same for given folders, so that it is tested without the packages."""
    installed = {distribution.name for distribution in importlib.metadata.distributions(path=list(search_path))}
    found = installed.intersection(_BACKENDS)
    built_in = any(True for folder in mlx_folders for _ in folder.glob("lib*/libmlx.*"))
    return frozenset(found or ({"mlx"} if built_in else ()))


def _glibc() -> Version | None:
    try:
        return _version((os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")[2])
    except (ValueError, OSError):
        return None


def _driver() -> Version | None:
    file = Path("/proc/driver/nvidia/version")
    try:
        match = re.search(r"Kernel Module.*?(\d+\.\d[\d.]*)", file.read_text())
    except OSError:
        match = None
    if match:
        return _version(match[1])
    text = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return _version(text.partition("\n")[0]) if text else None


def _sysctl(name: str) -> str:
    return _output("sysctl", "-n", name).strip()


def _output(*command: str) -> str:
    """What a command prints; empty when it is absent or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _version(text: str) -> Version | None:
    numbers = re.findall(r"\d+", text)
    return tuple(int(number) for number in numbers) or None
