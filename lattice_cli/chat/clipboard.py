"""A text to the clipboard of whoever sits at the terminal, also over ssh: the sequence OSC 52.

Thread: any
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import TextIO

from lattice_cli.console import is_live
from lattice_cli.errors import UsageError

MOST_BYTES = 74_994  # what xterm takes: 100,000 bytes with the rest of the sequence, in base64


def copied(text: str, stream: TextIO, env: Mapping[str, str] = os.environ) -> str:
    """Send the sequence and say so; whether a terminal obeys, none tells. Raises: UsageError."""
    if not is_live(stream):
        raise UsageError("there is no terminal here that could copy it", hint="`/export FILE` writes it to a file")
    data = text.encode("utf-8", "replace")
    if len(data) > MOST_BYTES:
        raise UsageError(
            f"the answer has {len(data):,} bytes, and terminals take {MOST_BYTES:,} for their clipboard",
            hint="`/export FILE` writes it to a file",
        )
    stream.write(f"\x1b]52;c;{base64.b64encode(data).decode()}\x07")
    stream.flush()
    doubt = " (tmux hands it on with `set -g set-clipboard on`)" if env.get("TMUX") else ""
    return f"copied {len(text):,} characters, where the terminal allows that{doubt}"
