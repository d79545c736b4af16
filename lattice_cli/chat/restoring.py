"""`--continue` and `--session`: which saved session a chat begins with, and with whom it was held.

Thread: any
"""

from __future__ import annotations

import os
from pathlib import Path

from lattice_cli.chat.keeping import checked_name
from lattice_cli.chat.store import Store
from lattice_cli.chat.store_rows import Saved
from lattice_cli.console import say
from lattice_cli.errors import UsageError
from lattice_cli.settings import Home


def open_store(home: Home) -> Store:
    """Where this user's sessions are; a damaged file is told of on stderr."""
    return Store(home.sessions, told=lambda sentence: say(f"warning: {sentence}"))


def from_anywhere(model: str | None) -> str | None:
    """A model's name as it can be used from any folder: a path becomes a whole one."""
    if model is None:
        return None
    kind, path = ("script:", model.removeprefix("script:")) if model.startswith("script:") else ("", model)
    by_path = kind or path.startswith((".", "~")) or (os.sep in path and Path(path).exists())
    return f"{kind}{os.path.abspath(Path(path).expanduser())}" if by_path else model


def restored(store: Store, *, continues: bool, name: str | None) -> tuple[Saved | None, str | None]:
    """The session to go on with, and the name of one that is to be begun.

    Raises: UsageError where `--continue` finds none or a name cannot be one; StoreFailed.
    """
    if continues and name is not None:
        raise UsageError("`--continue` and `--session` both name a session", param="--continue")
    if continues:
        saved = store.latest()
        if saved is None:
            raise UsageError("there is no session to go on with", param="--continue", hint="`lattice chat` begins one")
        return saved, None
    if name is None:
        return None, None
    if not name.strip():
        raise UsageError("`--session` needs a name", param="--session")
    saved = store.find(name.strip())
    if saved is None and name.strip().isdecimal():
        raise UsageError(
            f"there is no session {name.strip()}", param="--session", hint="`/sessions` in a chat lists them"
        )
    return saved, None if saved else checked_name(name)
