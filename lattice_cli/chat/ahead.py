"""What is typed while an answer comes: a preview of the next message, in one row below the answer.

Knows keys and cells. What the keys really do is decided when the line is edited; this shows the letters.

Thread: any
"""

from __future__ import annotations

from collections.abc import Sequence

from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

from lattice_cli.chat.view import Painter, Row
from lattice_cli.chat.wrap import cells
from lattice_cli.harmless import harmless

ERASING = {Keys.ControlH, Keys.Backspace}
ENDING = {Keys.ControlM, Keys.ControlJ, Keys.Enter}
MOST_CHARACTERS = 500  # enough for one row


def preview(keys: Sequence[KeyPress]) -> str:
    """The letters of keys; a line break is shown as its sign."""
    text, escaped = "", False
    for press in keys:
        was_escaped, escaped = escaped, press.key == Keys.Escape
        if was_escaped and len(press.key) == 1:  # Alt and a letter
            continue
        if press.key in ERASING:
            text = text[:-1]
        elif press.key in ENDING:
            text += "\n"
        elif press.key == Keys.ControlU:
            text = ""
        elif press.key == Keys.BracketedPaste:
            text += press.data[-MOST_CHARACTERS:]
        elif len(press.key) == 1:
            text += press.data
    return text


def ahead_rows(painter: Painter, text: str, width: int) -> list[Row]:
    """The end of a preview, as a row of at most `width` cells; none where nothing was typed."""
    if not text:
        return []
    sign = "⏎" if painter.fancy else "\\n"
    line = harmless(text[-MOST_CHARACTERS:].replace("\r", "\n")).replace("\n", sign).replace("\t", " ")
    room, start = width - 3, len(line)
    while start > 0 and (room := room - cells(line[start - 1])) >= 0:
        start -= 1
    return [painter.note(("> " if start == 0 else "< ") + line[start:])]
