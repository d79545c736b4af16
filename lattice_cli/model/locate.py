"""A name, alias or path -> where that model lies on this machine.

A name is tried in this order: `script:FILE`; a path that says so (`/`, `~`, `./`, `../`); a bare name in
the models folder, in the catalog, beside us; two parts as a local path, in the models folder, on the
hub. Opens no weights, and never the network by itself: `pull` is given or it is not (report 142).

Thread: any
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable
from pathlib import Path

from lattice_cli.errors import ModelNotFound, UnknownFormat
from lattice_cli.kernels import platform
from lattice_cli.kernels.machine import read_machine
from lattice_cli.model.card import ModelSource
from lattice_cli.model.catalog import CATALOG, CatalogEntry, catalog_entry, entry_for, is_repository
from lattice_cli.model.fetch import fetch
from lattice_cli.model.format import find_gguf, weight_files
from lattice_cli.model.q4_header import holds_q4
from lattice_cli.settings import Home

Pull = Callable[[CatalogEntry | str], Path]
SCRIPT = "script:"


def find_model(name: str | None, home: Home) -> ModelSource:
    """The model that `--model NAME` means, None: the default; pulled first where it is not here, with a
    line on stderr that says so. Blocks for as long as a download takes; a machine that could not run the
    model is told before.

    Raises: ModelNotFound, UnknownFormat, FetchFailed, InstallError.
    """

    def pull(target: CatalogEntry | str) -> Path:
        if error := platform.diagnose(read_machine()):
            raise error
        return fetch(target, home=home)

    return locate(name if name is not None else home.default_model, home, pull=pull)


def locate(name: str, home: Home, *, pull: Pull | None = None) -> ModelSource:
    """Where the model `name` lies. Without `pull` nothing is ever downloaded. Cost: a few `stat` calls.

    Raises: ModelNotFound, with what was looked for; UnknownFormat for a file that is no model or a folder
    of several; BrokenWeights for a folder whose index cannot be read.
    """
    if not name.strip():
        raise ModelNotFound("the model has no name", param="model", hint=_offers())
    if name.startswith(SCRIPT):
        return _script(name.removeprefix(SCRIPT), name)
    path = Path(name).expanduser()
    if path.is_absolute() or name.startswith(("~", "./", "../")) or name.endswith("/") or name in (".", ".."):
        if found := _at(path, None):
            return found
        raise missing(name, f"`{path}` does not exist")
    if len(path.parts) == 1:
        return _bare(name, home, pull)
    return _two_parts(name, path, home, pull)


def _bare(name: str, home: Home, pull: Pull | None) -> ModelSource:
    if not name.startswith(".") and (found := _at(home.models / name, None)):  # `.partial` is no model
        return found
    if entry := catalog_entry(name):
        if found := _at(home.models / entry.folder, entry.name):
            return found
        if pull is None:
            raise _not_here(entry.name)
        return _pulled(pull(entry), entry.name)
    if found := _at(Path(name), None):
        return found
    raise missing(name, f"no model `{name}`: looked for it in `{home.models}`, in the catalog and in this folder")


def _two_parts(name: str, path: Path, home: Home, pull: Pull | None) -> ModelSource:
    if found := _at(path, None):
        return found
    if not is_repository(name) or path.suffix.lower() == ".gguf":
        raise missing(name, f"no model `{name}`: there is no such path, and it is not the name of a repository")
    if found := _at(home.models / entry_for(name).folder, name):
        return found
    if pull is None:
        raise _not_here(name)
    return _pulled(pull(name), name)


def _at(path: Path, served_id: str | None) -> ModelSource | None:
    """The model at `path`; None where there is nothing. A folder whose only weights are one GGUF file is
    that file, under the folder's name.
    """
    path = Path(os.path.abspath(path))  # `.` and `..` have no name; links keep theirs
    if path.is_dir():
        gguf = None if weight_files(path) or holds_q4(path) else find_gguf(path)
        return ModelSource(served_id or path.name, gguf or path, "gguf" if gguf else "folder")
    if not path.is_file():
        return None
    if path.suffix.lower() != ".gguf":
        raise UnknownFormat(
            f"`{path}` is a file, and of files only `.gguf` is a model", hint=f"for a folder give `{path.parent}`"
        )
    return ModelSource(served_id or path.stem, path, "gguf")


def _pulled(folder: Path, served_id: str) -> ModelSource:
    found = _at(folder, served_id)
    assert found is not None, f"{folder} was pulled"
    return found


def _script(file: str, name: str) -> ModelSource:
    path = Path(os.path.abspath(Path(file).expanduser()))
    if not file or not path.is_file():
        raise ModelNotFound(f"no scripted model `{name}`: `{path}` is not a file", param="model")
    try:
        said = json.loads(path.read_text(encoding="utf-8")).get("name")
    except (OSError, ValueError, AttributeError, RecursionError):
        said = None  # engine/scripted says what is wrong with it
    return ModelSource(said if isinstance(said, str) and said else path.stem, path, "script")


# Nothing found.


def _not_here(name: str) -> ModelNotFound:
    return ModelNotFound(f"`{name}` is not on this machine", param="model", hint=f"run `lattice pull {name}`")


def missing(name: str, sentence: str) -> ModelNotFound:
    close = difflib.get_close_matches(name.casefold(), [entry.name for entry in CATALOG], n=1, cutoff=0.5)
    hint = f"did you mean `{close[0]}`?" if close else _offers()
    if "://" in name:
        hint = "of a page on a hub give `org/repo` alone"
    return ModelNotFound(sentence, param="model", hint=hint)


def _offers() -> str:
    names = ", ".join(f"`{entry.name}`" for entry in CATALOG)
    return f"give a name of the catalog ({names}), a folder, a `.gguf` file or an `org/repo`; see `lattice models`"
