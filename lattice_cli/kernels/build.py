"""The native kernels as a Python module: carried by the wheel, or compiled on first use and kept in our home.

A compiled module lies in `LATTICE_HOME/kernels/KEY/` (see shelf.py). It is written under another name first, tried in
a process of its own and renamed, and a lock lets a second process wait for the first instead of compiling too. What
failed is remembered by its key, and only `lattice kernels build` tries it again. Knows when to compile; knows no
model. Whatever goes wrong is a sentence, never a failure: the slower path remains.

Thread: worker
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lattice_cli.kernels import shelf
from lattice_cli.kernels.limits import usable_cores
from lattice_cli.kernels.recipe import (
    FILE,
    GET_NANOBIND,
    TRIED_NANOBIND,
    Recipe,
    Unbuildable,
    check_system,
    doubt,
    read_recipe,
    version,
)
from lattice_cli.kernels.self_check import load_module, try_apart
from lattice_cli.settings import Home

log = logging.getLogger("lattice.kernels")

COMPILE_LIMIT_S = 600
AGAIN = "`lattice kernels build` tries again"


def load(home: Home, say: shelf.Say | None = None) -> Any:
    """The module with its team started, compiled if need be. Cost: 15 ms, the first time 20-60 s on one core.

    `say` is called with one line before a compilation. Raises: Unbuildable.
    """
    module, _ = load_found(home)
    if module is not None:
        return module
    return load_module(make(home, say), _team_size(home))


def load_found(home: Home) -> tuple[Any | None, Path | None]:
    """The module of those that lie here, and its file; (None, None) where none fits. Compiles nothing.

    Raises: Unbuildable where there cannot be one, or where those that should fit do not.
    """
    check_system()
    refused: Unbuildable | None = None
    with _translated(home):
        for entry in shelf.fitting(home):
            try:
                return load_module(entry.file, _team_size(home)), entry.file
            except Unbuildable as error:
                log.info("`%s` passed over: %s", entry.file, error)
                refused = error
    if refused is not None:
        hindrance = obstacle(home)
        if hindrance is not None:
            raise Unbuildable(str(refused), hindrance.hint)
        if (shelf.kept(home) / read_recipe().key / FILE).exists():
            raise Unbuildable(str(refused), "`lattice kernels build --force` compiles them anew")
    return None, None


def make(
    home: Home, say: shelf.Say | None = None, *, force: bool = False, trial: Callable[[Path], str | None] = try_apart
) -> Path:
    """Compile into `home`, unless it was done or is being done by another process; the module's file.

    `force` compiles in any case. Raises: Unbuildable, also where the same recipe failed before.
    """
    with _translated(home):
        recipe = _recipe()
        folder = shelf.kept(home) / recipe.key
        with shelf.lock(home, say):
            if force or not (folder / FILE).exists():
                _refuse_failed(folder, force=force)
                _compile(recipe, folder, say, trial)
    return folder / FILE


def _recipe() -> Recipe:
    """Where nothing can be compiled and the wheel's kernels are for another mlx, that mlx is the shortest way."""
    try:
        return read_recipe()
    except Unbuildable as reason:
        for entry in shelf.entries(shelf.CARRIED):
            if entry.mlx not in ("", version("mlx")):
                what = f"the wheel carries kernels for mlx {entry.mlx}, and {version('mlx')} is installed"
                raise Unbuildable(what, f"pip install 'mlx[cpu]=={entry.mlx}'") from reason
        raise


def obstacle(home: Home) -> Unbuildable | None:
    """What keeps a module from being compiled here; None: nothing known. Compiles nothing. Cost: 5 ms."""
    try:
        with _translated(home):
            _refuse_failed(shelf.kept(home) / _recipe().key, force=False)
    except Unbuildable as reason:
        return reason
    return None


def forget_failure(home: Home) -> None:
    """Let `make` try again what failed. Raises: Unbuildable."""
    with _translated(home):
        (shelf.kept(home) / read_recipe().key / shelf.FAILED).unlink(missing_ok=True)


def _refuse_failed(folder: Path, *, force: bool) -> None:
    failed = folder / shelf.FAILED
    if failed.exists() and not force:
        raise Unbuildable(f"making the native kernels failed earlier, see `{failed}`", AGAIN)


def _compile(recipe: Recipe, folder: Path, say: shelf.Say | None, trial: Callable[[Path], str | None]) -> None:
    """One compilation, tried before it is put in place. Raises: Unbuildable, OSError."""
    failed = folder / shelf.FAILED
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob("making-*"):  # by a process that was killed: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    shelf.describe(folder, recipe)
    if doubtful := doubt():
        log.warning("%s", doubtful)
    if say is not None:
        say("compiling the CPU kernels, once (about half a minute)")
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as place:
        made = Path(place) / FILE
        command = [*recipe.command, "-o", str(made)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=COMPILE_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise Unbuildable("the compiler did not end", AGAIN) from error
        except OSError as error:
            raise Unbuildable(f"the compiler `{command[0]}` cannot be run ({error.strerror})") from error
        if done.returncode != 0 or not made.exists():
            failed.write_text(" ".join(command) + "\n\n" + done.stderr)
            raise Unbuildable(f"compiling the native kernels failed, see `{failed}`", AGAIN)
        if fault := trial(made):
            failed.write_text(" ".join(command) + "\n\n" + fault + "\n")
            raise Unbuildable(fault, AGAIN if recipe.nanobind == TRIED_NANOBIND else GET_NANOBIND)
        os.replace(made, folder / FILE)
    failed.unlink(missing_ok=True)


@contextmanager
def _translated(home: Home) -> Iterator[None]:
    """What the file system refuses is a reason like any other."""
    try:
        yield
    except OSError as error:
        folder, why = shelf.kept(home), error.strerror or str(error)
        raise Unbuildable(f"the native kernels cannot be kept in `{folder}` ({why})") from error


def _team_size(home: Home) -> int:
    return home.threads or usable_cores()
