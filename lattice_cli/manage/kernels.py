"""`lattice kernels build`, `status` and `clean`: the native CPU kernels, apart from any model.

Thread: any (mlx runs on the calling one)
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from lattice_cli import console
from lattice_cli.command_group import Group
from lattice_cli.errors import InstallError, LatticeError
from lattice_cli.manage.kernels_status import cells, read_status, record, rows
from lattice_cli.settings import Home, read_home

INTERRUPTED = 130


def kernels_build(home: Home, *, force: bool = False) -> Path:
    """Compile now unless it was done; what failed earlier is tried again. Says where the module lies.

    Raises: InstallError.
    """
    from lattice_cli.kernels import build, shelf
    from lattice_cli.kernels.recipe import Unbuildable

    _check_machine(home)
    try:
        _, file = (None, None) if force else build.load_found(home)
        if file is not None:
            carried = "the wheel brought them" if shelf.CARRIED in file.parents else "nothing is to be done"
            console.say(f"the kernels are in `{file}`: {carried}")
            return file
        build.forget_failure(home)
        started_s = time.monotonic()
        file = build.make(home, console.say, force=force)
        module, _ = build.load_found(home)
    except Unbuildable as error:
        raise InstallError(str(error), hint=error.hint) from error
    size, isa = console.megabytes(file.stat().st_size), module.isa() if module is not None else "?"
    console.say(f"the kernels are in `{file}`: {size}, {isa}, in {time.monotonic() - started_s:.0f} s")
    return file


def _check_machine(home: Home) -> None:
    """Raises: InstallError where kernels are of no use."""
    from lattice_cli.kernels import blas, platform

    blas.preload(home)
    platform.check_platform()
    if platform.backend_name() != "cpu":
        raise InstallError("the native kernels are for CPUs, and mlx computes on a GPU here")


def kernels_clean(home: Home, *, everything: bool = False) -> int:
    """Remove compiled modules that do not fit what is installed here, or every one; the bytes that are free now.

    Raises: LatticeError.
    """
    from lattice_cli.kernels import shelf

    freed = count = 0
    if shelf.kept(home).is_dir():
        try:
            with shelf.lock(home, console.say):
                for entry in shelf.entries(shelf.kept(home)):
                    if everything or not entry.fits:
                        freed += shelf.remove(entry)
                        count += 1
        except OSError as error:
            raise LatticeError(f"`{error.filename or shelf.kept(home)}` cannot be removed: {error.strerror}") from error
    if count:
        several = "modules" if count > 1 else "module"
        console.say(f"removed {count} compiled {several}: {console.megabytes(freed)} are free now")
    else:
        console.say("no compiled module is to be removed")
    return freed


# The commands.

kernels_app = typer.Typer(
    cls=Group, no_args_is_help=True, help="The native CPU kernels: compile them now, show them, tidy up."
)


@kernels_app.command("build")
def build_command(
    force: Annotated[bool, typer.Option("--force", help="Compile again what is there already.")] = False,
) -> None:
    """Compile the kernels now instead of at the first start; what failed earlier is tried again."""
    try:
        kernels_build(read_home(), force=force)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@kernels_app.command("status")
def status_command(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object on stdout, for programs.")] = False,
) -> None:
    """Show which kernels are used or why none are, and what lies in LATTICE_HOME/kernels."""
    status = read_status(read_home())
    if as_json:
        sys.stdout.write(json.dumps(record(status), indent=1) + "\n")
        return
    console.table(("what", "found"), rows(status))
    if status.entries:
        sys.stdout.write("\n")
        console.table(("key", "size", "made for", "state"), cells(status))


@kernels_app.command("clean")
def clean_command(
    everything: Annotated[bool, typer.Option("--all", help="Also those in use here.")] = False,
) -> None:
    """Remove compiled kernels that fit nothing installed here: of other versions of lattice, mlx or Python."""
    kernels_clean(read_home(), everything=everything)
