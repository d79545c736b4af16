"""How answers are shown in this terminal, or beside one.

Thread: any
"""

from __future__ import annotations

import sys

from lattice_cli.chat.actions import Talk
from lattice_cli.chat.line import Line
from lattice_cli.chat.live import LiveView
from lattice_cli.chat.plain import PlainView
from lattice_cli.chat.screen import terminal_size
from lattice_cli.chat.view import Painter
from lattice_cli.console import is_live, lenient, stdout_console


def open_view(talk: Talk, line: Line) -> LiveView | PlainView:
    """Markdown in a terminal, else text as it comes."""
    lenient(sys.stdout)
    if is_live(sys.stdout):
        return LiveView(
            sys.stdout,
            Painter(stdout_console()),
            lambda: terminal_size(sys.stdout),
            thinking=lambda: talk.thinking,
            typed=line.ahead,
        )
    return PlainView(sys.stdout, sys.stderr, lambda: talk.thinking)
