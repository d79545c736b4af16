"""What stands on stdin when it is not a terminal, and the one prompt that is made of it.

Thread: any
"""

from __future__ import annotations

import codecs
import os
import select
import stat
from typing import TextIO

from lattice_cli.console import is_terminal, say
from lattice_cli.errors import UsageError

PATIENCE_S = 3.0


def read_piped(stream: TextIO | None, *, beside_prompt: bool) -> str | None:
    """All of stdin as text, without the line break at its end; None where nothing is piped.

    Bytes that are not UTF-8 are replaced, with a warning. `beside_prompt`: `--prompt` was given, so
    only a pipe or a file counts (a socket or /dev/null is what a program hands down, not a document).
    Blocks until the other end closes it, and says so when that takes long.
    """
    if stream is None or is_terminal(stream):
        return None
    mode = os.fstat(stream.fileno()).st_mode
    if beside_prompt and not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
        return None
    if stat.S_ISFIFO(mode) and not select.select([stream], [], [], PATIENCE_S)[0]:
        say("reading from stdin, which is still open (`< /dev/null` gives none)")
    return decoded(stream.buffer.read(), "the piped text").rstrip("\r\n")


def decoded(data: bytes, what: str) -> str:
    """UTF-8 text, a byte order mark left out; wrong bytes become U+FFFD, with a warning that names `what`."""
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        say(f"warning: {what} is not UTF-8; what could not be read was replaced")
        return data.decode("utf-8", "replace")


def one_prompt(prompt: str | None, piped: str | None) -> str | None:
    """`--prompt`, what was piped, or the one with the other as a document below it. None: ask in a terminal.

    Raises: UsageError when what was given is empty.
    """
    if prompt is not None:
        prompt = decoded(prompt.encode("utf-8", "surrogateescape"), "`--prompt`")
    given = [text for text in (prompt, piped) if text is not None]
    if not given:
        return None
    texts = [text for text in given if text.strip()]
    if not texts:
        raise UsageError(
            "`--prompt` is empty" if prompt is not None else "the piped text is empty, so there is nothing to answer",
            hint='`lattice chat --prompt "..."`, or `lattice chat` in a terminal',
        )
    if prompt is not None and not prompt.strip():
        raise UsageError("`--prompt` is empty")
    return "\n\n".join(texts)
