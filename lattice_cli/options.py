"""Options that commands share: their types, their checks, and what they mean together.

Thread: any
"""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lattice_cli.settings import MOST_THREADS

ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="A catalog name, folder, .gguf file, org/repo or script:FILE "
        "[default: LATTICE_SERVE_MODEL, else smollm2-135m].",
    ),
]


class Kernels(StrEnum):
    off = "off"
    exact = "exact"
    fast = "fast"


KernelsOption = Annotated[
    Kernels | None,
    typer.Option(
        help="On a Linux CPU: our own kernels in float32 (exact), with 8-bit activations (fast), or mlx's (off) "
        "[default: LATTICE_KERNELS, else fast]."
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_THREADS,
        metavar="N",
        help="Threads that compute on a CPU [default: LATTICE_THREADS, else as many as cores are free].",
    ),
]


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class LogFormat(StrEnum):
    text = "text"
    json = "json"


def finite(value: float | None) -> float | None:
    """For numbers that a range alone does not guard: NaN is in every range."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number that can be used.")
    return value


def above_zero(value: float | None) -> float | None:
    """For numbers that must not be 0."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise typer.BadParameter(f"{value} is not above 0.")
    return value


def choose_logging(
    context: typer.Context, level: LogLevel | None, form: LogFormat | None, file: Path | None = None
) -> None:
    """What the command names wins over what stands before it; what neither names stays as it was. A `file` is there
    to be read later, so it has a line for each request.
    """
    from lattice_cli.console import configure_logging

    before = context.find_root().params
    usual = LogLevel.warning if file is None else LogLevel.info
    configure_logging(
        level.value if level else _named(context, "log_level") or usual.value,
        form.value if form else before.get("log_format") or LogFormat.text.value,
        file,
    )


def _named(context: typer.Context, name: str) -> str | None:
    """What an option before the command says, None where it only has its default."""
    root = context.find_root()
    typed = root.get_parameter_source(name)
    return root.params.get(name) if typed is not None and typed.name != "DEFAULT" else None
