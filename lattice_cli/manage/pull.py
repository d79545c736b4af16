"""`lattice pull NAME`: bring a model of the catalog or an `org/repo` to this machine.

Thread: any
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lattice_cli import console
from lattice_cli.settings import Home, read_home

INTERRUPTED = 130  # what a shell sees after Ctrl-C


def pull(name: str, home: Home) -> Path:
    """Pull `name`, say where it lies, and give its folder.

    Raises: ModelNotFound for a name that is neither of the catalog nor an `org/repo`; FetchFailed.
    """
    from lattice_cli.model.catalog import catalog_entry, is_repository
    from lattice_cli.model.fetch import fetch
    from lattice_cli.model.locate import missing
    from lattice_cli.model.pulled import is_complete

    entry = catalog_entry(name)
    if entry is None and not is_repository(name):
        raise missing(name, f"`{name}` is neither a name of the catalog nor an `org/repo`")
    already = entry is not None and is_complete(home.models / entry.folder)
    folder = fetch(entry or name, home)
    console.say(f"`{name}` {'was already' if already else 'is'} in `{folder}`")
    return folder


def complete_catalog(incomplete: str) -> list[str]:
    """The names of the catalog, for a shell."""
    from lattice_cli.model.catalog import CATALOG

    return [entry.name for entry in CATALOG if entry.name.startswith(incomplete)]


def pull_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            autocompletion=complete_catalog,
            help="A name of the catalog (see `lattice models`) or an `org/repo`.",
        ),
    ],
) -> None:
    """Download a model; an interrupted download goes on where it stopped."""
    try:
        pull(name, read_home())
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
