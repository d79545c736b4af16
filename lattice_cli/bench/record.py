"""What every measurement's JSON record begins with, and where records go: stdout, a file, or both.

Thread: any
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from lattice_cli import console
from lattice_cli.bench.machine import Machine
from lattice_cli.bench.stats import Spread
from lattice_cli.errors import UsageError

SCHEMA = 2  # 1 had no `points`


@dataclass(frozen=True, slots=True)
class Setting:
    """What every record names: the command, the machine, versions, what was measured."""

    command: str
    machine: Machine
    versions: Mapping[str, str | None]
    model: str
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outlet:
    """Where a record goes. With `as_json` tables go to stderr and stdout is the record alone; without, the table is
    stdout's, and the record comes after it where stdout is no terminal. `save` gets the record as well.
    """

    as_json: bool = False
    save: Path | None = None

    def check(self) -> None:
        """Before hours are spent. Raises: UsageError when `save` cannot be written."""
        if self.save is not None and not (self.save.parent.is_dir() and not self.save.is_dir()):
            raise UsageError(
                f"`--save` is `{self.save}`, which cannot be written",
                param="--save",
                hint="give a file in a folder there is",
            )

    @property
    def tables(self) -> TextIO:
        return sys.stderr if self.as_json else sys.stdout

    def table(self, columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
        console.table(tuple(columns), list(rows), file=self.tables)

    def line(self, text: str) -> None:
        """A line among the tables."""
        self.tables.write(text + "\n")

    def write(self, record: Mapping[str, Any]) -> None:
        """The record as the last line of stdout, and into the file. Raises: UsageError."""
        text = json.dumps(rounded(record))
        if self.save is not None:
            try:
                self.save.write_text(text + "\n", encoding="utf-8")
            except OSError as error:
                raise UsageError(f"`{self.save}` cannot be written: {error.strerror}", param="--save") from error
        if self.as_json or not console.is_terminal(sys.stdout):
            sys.stdout.write(text + "\n")
        sys.stdout.flush()


def head(bench: str, setting: Setting, seed: int) -> dict[str, Any]:
    """The fields that all records share."""
    return {
        "bench": bench,
        "schema": SCHEMA,
        "model": setting.model,
        "command": setting.command,
        "seed": seed,
        **setting.about,
        "machine": asdict(setting.machine),
        "versions": dict(setting.versions),
    }


def plain(figures: Mapping[str, Spread | None]) -> dict[str, Any]:
    """Figures as values JSON can hold."""
    return {name: None if there is None else asdict(there) for name, there in figures.items()}


def rounded(value: Any) -> Any:
    """Six decimals: a microsecond of a second, and no figure here is known better."""
    match value:
        case float():
            return round(value, 6)
        case dict():
            return {name: rounded(inner) for name, inner in value.items()}
        case list() | tuple():
            return [rounded(inner) for inner in value]
        case _:
            return value


def figure(value: float) -> str:
    """Four digits, and no exponents: `0.4422`, `19.05`, `34,260`."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def figure_rows(figures: Mapping[str, Any], tail: str = "p95") -> Iterable[tuple[str, ...]]:
    """Name, median, p5 .. p95 (or median, p95, p99) and count of each figure."""
    for name, there in figures.items():
        if there is None:
            yield (name, "-", "-", "0")
        elif tail == "p99":
            yield (
                name,
                figure(there["median"]),
                f"{figure(there['p95'])}, {figure(there['p99'])}",
                str(there["count"]),
            )
        else:
            yield (
                name,
                figure(there["median"]),
                f"{figure(there['p5'])} .. {figure(there['p95'])}",
                str(there["count"]),
            )


def machine_line(machine: Mapping[str, Any]) -> str:
    name = machine["processor"] or machine["system"]
    return f"{name}, {machine['cores']} cores, load {machine['load_1m']} at the start"


def command_line(secret: str | None = None) -> str:
    """The command line as it was typed, without the key."""
    words = ["lattice", *sys.argv[1:]]
    return shlex.join(word.replace(secret, "***") if secret else word for word in words)
