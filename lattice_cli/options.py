"""Options that commands share: their types, their checks, and what they mean together.

Thread: any
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lattice_cli.errors import UsageError
from lattice_cli.settings import MOST_THREADS, read_home


def cached_models(models: Path) -> list[str]:
    """The models that lie in a models folder, as `--model` takes them. Cost: one look into it."""
    try:
        names = [entry.name for entry in models.iterdir() if not entry.name.startswith(".")]
    except OSError:
        return []
    return sorted(name.replace("--", "/", 1) for name in names)


def complete_model(incomplete: str) -> list[str]:
    """The same for a shell."""
    try:
        return [name for name in cached_models(read_home().models) if name.startswith(incomplete)]
    except UsageError:
        return []


ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        autocompletion=complete_model,
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
        help="On a Linux CPU: our own kernels in float32 (exact), with 8-bit activations (fast), or mlx's (off); "
        "on an NVIDIA GPU: fused steps, unless off "
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


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def byte_count(text: str) -> int:
    """A size in bytes, or with a unit of 1024 bytes, its square and so on: 300000, 512M, 1.5GiB."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"`{text}` is not a size, such as 512M or 1.5G.")
    return int(float(found[1]) * _UNITS[found[2].upper()])


CacheBytesOption = Annotated[
    int | None,
    typer.Option(
        parser=byte_count,
        metavar="SIZE",
        help="Memory for what was read before, such as 2G [default: a quarter of it all].",
    ),
]
MemoryLimitOption = Annotated[
    int | None,
    typer.Option(
        parser=byte_count,
        metavar="SIZE",
        help="Memory for replies and what was read before, such as 6G [default: 3/4 of what the weights leave].",
    ),
]
NoPrefixCacheOption = Annotated[bool, typer.Option("--no-prefix-cache", help="Read every prompt anew.")]
CacheDirOption = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        metavar="FOLDER",
        help="Keep what was read before here, too, for after a restart; as many bytes as in memory.",
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


def not_empty(values: list[str] | None) -> list[str] | None:
    """For names that requests may give: an empty one is a request without any."""
    if any(not value.strip() for value in values or ()):
        raise typer.BadParameter("it must not be empty.")
    return values


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether the command line itself names an option, by the name of its parameter."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


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
