"""What a measurement was made on: processor, memory, system, versions.

Knows the operating system's files and commands; knows nothing of models. A value that cannot be read
is None, never a guess.

Thread: any
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from lattice_cli.kernels import limits
from lattice_cli.settings import Home

_WEIGHTS = (".safetensors", ".gguf", ".q4", ".f16", ".bin")


@dataclass(frozen=True, slots=True)
class Machine:
    """`cores` and `memory_bytes` are what this process may use; `load_1m` is the load before measuring."""

    processor: str | None
    accelerator: str | None
    cores: int
    memory_bytes: int
    system: str
    load_1m: float | None


def describe() -> Machine:
    """This machine. Cost: a few milliseconds, more where a command must be asked."""
    return Machine(
        processor=_processor(),
        accelerator=_first_line("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
        cores=limits.usable_cores(),
        memory_bytes=limits.memory_bytes(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        load_1m=round(os.getloadavg()[0], 2),
    )


def versions() -> dict[str, str | None]:
    """Python and the packages that decide the speed."""
    names = ("lattice-cli", "mlx", "mlx-lm", "mlx-cpu", "mlx-metal", "mlx-cuda-12", "mlx-cuda-13")
    found = {name: _version(name) for name in names}
    revision = _revision()
    return {
        "python": platform.python_version(),
        **{name: found[name] for name in names if found[name]},
        **({"revision": revision} if revision else {}),
    }


def _revision() -> str | None:
    """The git commit of an editable installation, `+` after it when files differ from it; None of any other."""
    try:
        direct = json.loads(metadata.distribution("lattice-cli").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return None
    folder = urlsplit(str(direct.get("url", ""))).path
    if not direct.get("dir_info", {}).get("editable") or not (Path(folder) / ".git").exists():
        return None
    commit = _first_line("git", "-C", folder, "rev-parse", "--short=12", "HEAD")
    changed = _first_line("git", "-C", folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+" if commit and changed else commit


def model_hash(path: Path) -> str:
    """sha256 over the names and bytes of the weights and the config at `path`. Cost: a second for 1.5 GB."""
    files = (
        [path]
        if path.is_file()
        else sorted(f for f in path.iterdir() if f.suffix in _WEIGHTS or f.name == "config.json")
    )
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def computing(home: Home) -> dict[str, str | int | None]:
    """Which back end mlx computes on, which BLAS and kernels serve it, and the threads that were asked for.

    Call it once a model is loaded.
    """
    from lattice_cli.kernels import blas, native_choice, platform

    library, native = blas.preload(home), native_choice.choose(home)
    return {
        "backend": platform.backend_name(),
        "blas": str(library.path or library.name),
        "kernels": f"{home.kernels}, {native.reason}" if native.module is not None else native.reason,
        "threads": home.threads,
    }


def peak_memory_bytes() -> int:
    """The most memory this process has held in RAM at once; GPU memory of its own is not in it."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str | None:
    if sys.platform == "darwin":
        return _first_line("sysctl", "-n", "machdep.cpu.brand_string")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or None)


def _first_line(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()[0].strip() if done.stdout.strip() else None
