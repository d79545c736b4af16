"""Texts from outside, before a terminal sees them.

Thread: any
"""

from __future__ import annotations

import re

# C0 and C1 controls, and with them every escape sequence; the marks that turn the direction of text, which make it
# read as what it is not; line and paragraph separators.
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """A text of a model, a file or a server, without what would steer a terminal; line breaks are `\\n`."""
    return STEERING.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r", ""))
