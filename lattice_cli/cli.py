"""The command tree, and the one place where an error becomes an exit status.

    0 done · 1 our own fault, or `doctor` finds something missing · 2 usage · 3 model or installation
    4 a benchmark that does not hold · 5 a prompt too long for the window · 130 Ctrl-C · 141 nobody reads our stdout

Knows the commands' signatures; each imports its heavy modules in its body, so `lattice --help` loads
neither mlx nor mlx_lm.

Thread: any
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from lattice_cli import __version__
from lattice_cli.bench.command import bench_app
from lattice_cli.chat.command import chat_command
from lattice_cli.command_group import Group, OptionsOnly
from lattice_cli.console import configure_logging, fail
from lattice_cli.errors import LatticeError
from lattice_cli.manage.doctor import doctor_command
from lattice_cli.manage.kernels import kernels_app
from lattice_cli.manage.models import models_app
from lattice_cli.manage.pull import pull_command
from lattice_cli.manage.quantize import quantize_command
from lattice_cli.serve.command import serve_command

log = logging.getLogger("lattice.cli")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
app = typer.Typer(
    name="lattice",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("chat", cls=OptionsOnly)(chat_command)
app.command("serve", cls=OptionsOnly)(serve_command)
app.command("pull")(pull_command)
app.add_typer(models_app, name="models")
app.command("quantize")(quantize_command)
app.add_typer(kernels_app, name="kernels")
app.command("doctor")(doctor_command)
app.add_typer(bench_app, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        from lattice_cli.manage.doctor import versions_line

        typer.echo(versions_line())
        raise typer.Exit


@app.callback()
def lattice(
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error; on stderr")] = "warning",
    log_format: Annotated[str, typer.Option(help="text or json")] = "text",
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Versions and back end, then exit")
    ] = False,
) -> None:
    """Run language models on your own machine: in the terminal, over HTTP, from one command."""
    configure_logging(log_level, log_format)


def run(arguments: Sequence[str], commands: typer.Typer = app) -> int:
    """The exit status of one command line. Errors are said on stderr, once, in one sentence."""
    try:
        commands(args=list(arguments), prog_name="lattice")
    except SystemExit as ending:  # how typer ends, well or not
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except LatticeError as error:
        log.debug("the error in full", exc_info=True)
        fail(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our stdout is gone; as a shell counts SIGPIPE
        return 141
    except Exception as error:
        log.debug("the error in full", exc_info=True)
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            fail(no_room(error))
            return 1
        fail(
            LatticeError(
                f"this is a bug in lattice {__version__}: {type(error).__name__}: {error}",
                hint="`lattice --log-level debug ...` shows where; please report that",
            )
        )
        return 1
    return 0


def main() -> int:
    """The console script. A stdout that is closed, or was never open, is no error worth words."""
    status = run(sys.argv[1:])
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError) and status == 0:
                fail(no_room(error))
                return 1
    return status


def no_room(error: OSError) -> LatticeError:
    """A disk that is full, or a file that may not grow: nobody's bug."""
    where = f"`{error.filename}`" if error.filename else "the output"
    return LatticeError(f"{where} could not be written: {error.strerror}")
