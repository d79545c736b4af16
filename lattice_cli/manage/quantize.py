"""`lattice quantize SRC DST`: a model again, in 4 or 8 bits, as a folder that was not there before.

Knows places on disk and what may be asked for; `model.convert` knows the rest.

Thread: any
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lattice_cli import console
from lattice_cli.errors import ModelError, UnknownFormat, UsageError
from lattice_cli.manage.pull import INTERRUPTED
from lattice_cli.options import complete_model
from lattice_cli.settings import Home, read_home

if TYPE_CHECKING:
    from lattice_cli.model.card import ModelFormat
    from lattice_cli.model.convert import Packing

BITS, GROUP_SIZES = (4, 8), (32, 64)


def quantize(name: str, target: Path, packing: Packing, home: Home) -> Path:
    """Write the model `name` into the new folder `target`, and say what was done.

    The folder appears whole or not at all. Raises: UsageError where `target` exists or cannot be; ModelError,
    InstallError.
    """
    from lattice_cli.kernels import blas, platform
    from lattice_cli.model.format import read_format
    from lattice_cli.model.locate import find_model

    target = Path(os.path.abspath(target.expanduser()))
    refuse_existing(target)
    source = find_model(name, home)
    if source.kind == "script":
        raise UnknownFormat(f"`{name}` is a script, and has no weights to quantize", param="SRC")
    found = read_format(source.path)
    if found.kind == packing.target == "q4":
        raise UnknownFormat(f"`{source.path}` is a `.q4` folder already", param="SRC")
    blas.preload(home)
    platform.check_platform()
    from lattice_cli.model.convert import convert

    if found.quantization != "none":
        console.say(
            f"`{source.served_id}` is in {found.quantization}: it is expanded first, and what it lost stays lost"
        )
    started_s = time.monotonic()
    with fresh_folder(target) as folder:
        with console.progress(f"quantizing {source.served_id}") as bar:
            convert(source, found, packing, folder, bar.update)
        made = read_format(folder)
    console.say(_summary(target, found, made, time.monotonic() - started_s))
    return target


def _summary(target: Path, found: ModelFormat, made: ModelFormat, seconds: float) -> str:
    sizes = f"{console.megabytes(made.nbytes)} from {console.megabytes(found.nbytes)}"
    return f"`{target}` is {made.kind} in {made.quantization}: {sizes} in {seconds:.0f} s"


def refuse_existing(target: Path) -> None:
    """Raises: UsageError where `target` is there already, or the folder it is to lie in is not."""
    if os.path.lexists(target):
        raise UsageError(f"`{target}` exists, and nothing is overwritten", param="DST", hint="name a new folder")
    if not target.parent.is_dir():
        raise UsageError(f"the folder `{target.parent}` does not exist", param="DST")


@contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target` that becomes it when the block ends well, and is gone when it does not.

    Raises: ModelError for what the system refuses: no room, no right, a `target` made meanwhile.
    """
    folder = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        folder.mkdir()
        yield folder
        refuse_existing(target)  # a rename would replace an empty folder
        folder.rename(target)
    except OSError as error:
        raise ModelError(f"`{target}` could not be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def choose_packing(target: Literal["q4", "mlx"], bits: int | None, group_size: int | None) -> Packing:
    """What the options ask for: mlx in 4 bits and groups of 64, where they leave it open.

    Raises: UsageError.
    """
    from lattice_cli.model.convert import Packing

    if target == "q4":
        if bits not in (None, 4):
            raise UsageError(f"`--bits` is {bits}, and the q4 format has 4", param="--bits")
        if group_size not in (None, 32):
            raise UsageError(f"`--group-size` is {group_size}, and the q4 format has 32", param="--group-size")
        return Packing("q4", 4, 32)
    if bits is not None and bits not in BITS:
        raise UsageError(f"`--bits` is {bits}, and must be 4 or 8", param="--bits")
    if group_size is not None and group_size not in GROUP_SIZES:
        raise UsageError(f"`--group-size` is {group_size}, and must be 32 or 64", param="--group-size")
    return Packing("mlx", bits or 4, group_size or 64)


def quantize_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            autocompletion=complete_model,
            help="A catalog name, folder, .gguf file or org/repo, as for `--model`.",
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The folder to make; it must not exist.")],
    format_: Annotated[
        Literal["q4", "mlx"],
        typer.Option("--format", help="q4: 4 bits, which Rust Lattice reads too. mlx: which mlx-lm reads too."),
    ],
    bits: Annotated[int | None, typer.Option(metavar="4|8", help="Bits a weight [default: 4]; q4 has 4.")] = None,
    group_size: Annotated[
        int | None,
        typer.Option(metavar="32|64", help="Weights that share a scale [default: 64 for mlx]; q4 has 32."),
    ] = None,
) -> None:
    """Write a model into a new folder, in 4 or 8 bits a weight."""
    try:
        quantize(source, target, choose_packing(format_, bits, group_size), read_home())
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
