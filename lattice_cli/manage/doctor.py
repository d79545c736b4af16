"""`lattice doctor`: what this machine computes with, what is missing, and the command that brings it.

Thread: any
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from lattice_cli import __version__, console
from lattice_cli.manage.examination import Examination, examine, package_versions
from lattice_cli.settings import read_home


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object on stdout, for programs.")] = False,
) -> None:
    """Say what this machine computes with and what is missing; exit status 0 when ready, 1 when not."""
    found = examine(read_home())
    if as_json:
        sys.stdout.write(json.dumps({"ready": found.ready, **asdict(found)}, indent=1) + "\n")
    else:
        console.table(("what", "found"), rows(found))
        for missing in found.missing:
            console.say(f"\n{'missing' if missing.blocks else 'advice'}: {missing.what}")
            if missing.hint:
                console.say(f"hint: {missing.hint}")
    raise typer.Exit(0 if found.ready else 1)


def rows(found: Examination) -> list[tuple[str, str]]:
    """What is printed, line by line."""
    rate = f", {found.gflops:.0f} GFLOP/s in float32" if found.gflops is not None else ""
    free = f" ({console.megabytes(found.free_bytes)} free)" if found.free_bytes is not None else ""
    return [
        ("lattice", found.version),
        ("packages", ", ".join(f"{name} {version}" for name, version in found.packages.items())),
        ("back end", found.backend),
        ("device", found.device + (rate if found.blas is None else "")),
        *([("BLAS", found.blas + rate)] if found.blas is not None else []),
        *([("kernels", found.kernels)] if found.kernels is not None else []),
        ("memory", f"{console.megabytes(found.memory_bytes)}, {found.cores} cores"),
        ("prefix cache", f"up to {console.megabytes(found.cache_bytes)} unless `--cache-bytes` says otherwise"),
        ("home", found.home),
        ("models folder", found.models_folder + free),
        ("models", ", ".join(found.models) or "none yet"),
        ("default model", found.default_model),
        *([("decoding", found.decoding)] if found.decoding is not None else []),
        *([("template", found.template)] if found.template is not None else []),
        ("sampling", ", ".join(f"{n} {v}" for n, v in (found.sampling or {}).items() if v is not None) or "unknown"),
    ]


def versions_line() -> str:
    """`lattice 0.1.0 (mlx 0.32.4, mlx-lm 0.32.2, cpu)`. Cost: 10 ms; nothing heavy is imported."""
    from lattice_cli.kernels.machine import read_machine
    from lattice_cli.kernels.platform import guess_backend

    versions = package_versions()
    named = [f"{name} {versions.get(name, 'missing')}" for name in ("mlx", "mlx-lm")]
    backend = guess_backend(read_machine())
    named.append("no back end" if backend == "none" else backend)
    return f"lattice {__version__} ({', '.join(named)}; Python {sys.version.split()[0]}, {os.uname().sysname})"
