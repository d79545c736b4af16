"""A talk as a file: Markdown to read, JSON to go on with elsewhere. Written whole or not at all.

Thread: any
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lattice_cli.chat.session import Session
from lattice_cli.errors import LatticeError, UsageError

WHO = {"user": "You", "system": "System"}


class FileThere(UsageError):
    """The file to be written exists."""


def write_export(path: str, session: Session, model: str, title: str, *, replace: bool = False) -> str:
    """Write the talk; a sentence that says what was written. The suffix of `path` chooses the form.

    Raises: UsageError for a suffix that is neither, FileThere, LatticeError where it cannot be written.
    """
    if not path.strip():
        raise UsageError("say which file", hint="`/export talk.md` or `/export talk.json`")
    file = Path(_spelled(path.strip())).expanduser()
    form = FORMS.get(file.suffix.lower())
    if form is None:
        raise UsageError(f"`{file}` ends neither in `.md` nor in `.json`", hint="the suffix chooses the form")
    if not session.turns:
        raise UsageError("there is nothing to write yet", hint="ask something first")
    if file.is_dir():
        raise UsageError(f"`{file}` is a folder")
    if os.path.lexists(file) and not replace:
        raise FileThere(f"`{file}` is there already", hint="give another name, or say that it shall be replaced")
    try:
        _write(file, form(session, model, title), replace=replace)
    except FileExistsError:
        raise FileThere(f"`{file}` is there already") from None
    except OSError as error:
        raise LatticeError(f"`{file}` cannot be written: {error.strerror or error}") from error
    count = session.questions
    return f"written: {count} message{'s' if count != 1 else ''} with the answers, to `{file}`"


def _spelled(path: str) -> str:
    """The path without the quotation marks or backslashes that Tab and a shell's habits put into it."""
    if len(path) > 2 and path[0] == path[-1] and path[0] in "\"'":
        return path[1:-1]
    return re.sub(r"\\([\s\\\"'])", r"\1", path)


def _write(file: Path, text: str, *, replace: bool) -> None:
    """Under another name first, then in one step. What a link points to is replaced, not the link."""
    file = Path(os.path.realpath(file))
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name[:100]}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        if replace:
            os.replace(name, file)
        else:
            try:
                os.link(name, file)  # unlike a rename this never takes another file's place
            except FileExistsError:
                raise
            except OSError:  # a file system without hard links
                os.rename(name, file)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


def _markdown(session: Session, model: str, title: str) -> str:
    """One heading for each turn; the texts as they are."""
    parts = [f"# {title}\n"]
    if session.system:
        parts.append(f"## System\n\n{session.system}\n")
    for turn in session.turns:
        thought = f"> {turn.reasoning.strip().replace(chr(10), chr(10) + '> ')}\n\n" if turn.reasoning else ""
        parts.append(f"## {WHO.get(turn.role, model)}\n\n{thought}{turn.text.strip()}\n")
    return "\n".join(parts)


def _json(session: Session, model: str, title: str) -> str:
    """`messages` as any OpenAI-compatible server takes them."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": session.system}] if session.system else []
    for turn in session.turns:
        thought = {"reasoning_content": turn.reasoning} if turn.reasoning else {}
        messages.append({"role": turn.role, "content": turn.text, **thought})
    return json.dumps({"title": title, "model": model, "messages": messages}, ensure_ascii=False, indent=2) + "\n"


FORMS: dict[str, Callable[[Session, str, str], str]] = {".md": _markdown, ".markdown": _markdown, ".json": _json}
