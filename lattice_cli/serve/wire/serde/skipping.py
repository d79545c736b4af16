"""Past values of JSON that nobody wants, at any depth; of their strings and numbers only the form is looked at, as
serde_json does.

Thread: any
"""

from __future__ import annotations

import re

from lattice_cli.serve.wire.serde.place import ARRAY, CLOSE, COMMA, DIGITS, END, MINUS, OBJECT, QUOTE, SPACE_RULE
from lattice_cli.serve.wire.serde.reader import ENDED, Reader
from lattice_cli.serve.wire.serde.strings import STRING_RULE
from lattice_cli.serve.wire.serde.tokens import NUMBER_RULE, WORDS

# PERF: runs of flat items, each with the comma behind it: one match passes what else would be thousands of steps.
FLAT_RULE = SPACE_RULE + rb"(?:" + STRING_RULE + rb"|" + NUMBER_RULE + rb"|true|false|null)" + SPACE_RULE + rb","
ITEMS = re.compile(rb"(?:" + FLAT_RULE + rb")*+")
MEMBERS = re.compile(rb"(?:" + SPACE_RULE + STRING_RULE + SPACE_RULE + rb":" + FLAT_RULE + rb")*+")


def skip(reader: Reader) -> None:
    """Past the value that begins here."""
    open_ones = bytearray()
    while True:
        byte = reader.peek()
        if byte in CLOSE:
            open_ones.append(byte)
            reader.at += 1
            if reader.peek() == END:
                reader.fail(ENDED[byte], ahead=True)
            if reader.peek() != CLOSE[byte]:
                _to_value(reader, byte)
                continue
        else:
            _scalar(reader, byte)
        if not _ends(reader, open_ones):
            return


def _ends(reader: Reader, open_ones: bytearray) -> bool:
    """After a value: past closing brackets to the next value; False where there is none."""
    while open_ones:
        kind, byte = open_ones[-1], reader.peek()
        if byte == COMMA:
            reader.at += 1
            _to_value(reader, kind)
            return True
        if byte != CLOSE[kind]:
            reader.fail(ENDED[kind] if byte == END else f"expected `,` or `{chr(CLOSE[kind])}`", ahead=True)
        reader.at += 1
        open_ones.pop()
    return False


def _to_value(reader: Reader, kind: int) -> None:
    """Inside brackets, past flat items, and past its name to the value that comes then."""
    reader.past(ITEMS if kind == ARRAY else MEMBERS)
    if kind == OBJECT:
        if reader.peek() != QUOTE:
            reader.fail(ENDED[kind] if reader.peek() == END else "key must be a string", ahead=True)
        reader.skip_string()
        reader.colon()


def _scalar(reader: Reader, byte: int) -> None:
    if byte == QUOTE:
        reader.skip_string()
    elif byte in WORDS:
        reader.word()
    elif byte == MINUS or byte in DIGITS:
        reader.skip_number()
    else:
        reader.no_value()
