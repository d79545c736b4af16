"""`lattice models` and `lattice models rm`: what is here, what the catalog offers, what may go.

Thread: any
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from lattice_cli import console
from lattice_cli.command_group import Group
from lattice_cli.errors import ModelError, ModelNotFound, UsageError
from lattice_cli.options import complete_model
from lattice_cli.settings import Home, read_home

COLUMNS = ("name", "format", "size", "context", "licence", "where")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One model. `path` is None for one that the catalog offers and that is not here; `problem` is a
    sentence where it cannot be read; `partial_bytes` is what an interrupted pull left.
    """

    name: str
    format: str | None = None
    quantization: str | None = None
    architecture: str | None = None
    size_bytes: int | None = None
    context_tokens: int | None = None
    licence: str | None = None
    path: str | None = None
    pulled: bool = False
    partial_bytes: int = 0
    problem: str | None = None


def models_list(home: Home, *, as_json: bool = False) -> None:
    """Print what is here and what could be, on stdout: a table, or a JSON list for programs."""
    lines = [*local_models(home), *offered_models(home)]
    if as_json:
        sys.stdout.write(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
        return
    _show([_cells(line) for line in lines])
    for line in lines:
        if line.problem:
            console.say(f"{line.name}: {line.problem}")


def _show(rows: list[tuple[str, ...]]) -> None:
    """One table, or where a terminal is too narrow for it two: what each is, then where each is."""
    needed = sum(max(map(len, column)) + 2 for column in zip(COLUMNS, *rows, strict=True))
    if not console.is_terminal(sys.stdout) or needed - 2 <= console.stdout_console().width:
        console.table(COLUMNS, rows)
        return
    console.table(COLUMNS[:-1], [row[:-1] for row in rows])
    sys.stdout.write("\n")
    console.table((COLUMNS[0], COLUMNS[-1]), [(row[0], row[-1]) for row in rows])


def local_models(home: Home) -> Iterator[Line]:
    """Every folder and `.gguf` file of the models folder, in the order of their names. Headers only."""
    for path in sorted(home.models.iterdir()) if home.models.is_dir() else ():
        if not path.name.startswith(".") and (path.is_dir() or path.suffix.lower() == ".gguf"):
            yield _local(path)


def _local(path: Path) -> Line:
    from lattice_cli.model.format import read_format
    from lattice_cli.model.pulled import folder_bytes, read_marker

    pull = read_marker(path)
    line = Line(
        name=pull.name if pull else path.name if path.is_dir() else path.stem,
        size_bytes=folder_bytes(path) if path.is_dir() else path.stat().st_size,
        licence=pull.licence if pull else None,
        path=str(path),
        pulled=pull is not None,
    )
    try:
        found = read_format(path)
    except ModelError as error:
        return replace(line, problem=error.message)
    return replace(
        line,
        format=found.kind,
        quantization=found.quantization,
        architecture=found.architecture,
        size_bytes=found.nbytes,
        context_tokens=found.context_tokens,
    )


def offered_models(home: Home) -> Iterator[Line]:
    """What the catalog has and this machine has not."""
    from lattice_cli.model.catalog import CATALOG
    from lattice_cli.model.pulled import partial_bytes

    for entry in CATALOG:
        if not (home.models / entry.folder).exists():
            yield Line(
                name=entry.name,
                format=entry.format,
                quantization=entry.quantization,
                size_bytes=entry.nbytes,
                context_tokens=entry.context_tokens,
                licence=entry.licence,
                partial_bytes=partial_bytes(home.models, entry.folder),
            )


def _cells(line: Line) -> tuple[str, ...]:
    quantization = f" {line.quantization}" if line.quantization not in (None, "none") else ""
    kept = f" ({console.megabytes(line.partial_bytes)} are here)" if line.partial_bytes else ""
    return (
        line.name,
        "unreadable" if line.problem else f"{line.format}{quantization}",
        console.megabytes(line.size_bytes) if line.size_bytes is not None else "?",
        str(line.context_tokens) if line.context_tokens is not None else "?",
        line.licence or "?",
        _short(line.path) if line.path else f"lattice pull {line.name}{kept}",
    )


def _short(path: str) -> str:
    """The path with `~` for the user's home, as `--model` takes it."""
    home = str(Path.home())
    return "~" + path[len(home) :] if path.startswith(home + "/") else path


# Removing.


def models_rm(name: str, home: Home, *, yes: bool = False) -> None:
    """Remove a pulled model, and what an interrupted pull left of it, after asking.

    Raises: ModelNotFound where it is not here, ModelError where it was not pulled by lattice, UsageError
    where there is nobody to ask.
    """
    from lattice_cli.model.catalog import catalog_entry, entry_for, is_repository
    from lattice_cli.model.pulled import folder_bytes, partial_bytes, remove

    entry = catalog_entry(name) or (entry_for(name) if is_repository(name) else None)
    folder = home.models / (entry.folder if entry else name)
    within = folder.parent == home.models and not name.startswith(".")
    kept = partial_bytes(home.models, folder.name) if within else 0
    if not within or not (kept or os.path.lexists(folder)):
        raise ModelNotFound(f"no model `{name}` in `{home.models}`", hint="`lattice models` lists what is here")
    if not yes and not _agreed(f"remove `{folder}` ({console.megabytes(folder_bytes(folder) + kept)})?"):
        console.say("nothing was removed")
        return
    others = remove(home.models, folder.name)
    console.say(f"removed `{name}`")
    if others:
        console.say(f"`{folder}` stays, with what lattice did not put there: {', '.join(others)}")


def _agreed(question: str) -> bool:
    if not console.is_terminal(sys.stdin):
        raise UsageError("there is no terminal to ask at", hint="add `--yes` to remove without asking")
    while True:
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        try:
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            raise
        if not answer:  # Ctrl-D
            sys.stderr.write("\n")
        if answer.strip().lower() in ("", "y", "yes", "n", "no"):
            return answer.strip().lower().startswith("y")


# The commands.

models_app = typer.Typer(cls=Group, help="List the models here and in the catalog; remove one.")


@models_app.callback(invoke_without_command=True)
def list_command(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list on stdout, for programs.")] = False,
) -> None:
    """List the models on this machine, and those of the catalog that are not here."""
    if context.invoked_subcommand is None:
        models_list(read_home(), as_json=as_json)


@models_app.command("rm")
def remove_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", autocompletion=complete_model, help="A name as `lattice models` shows it.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a model that `lattice pull` brought; never one that it did not."""
    models_rm(name, read_home(), yes=yes)
