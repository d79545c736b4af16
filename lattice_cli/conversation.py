"""Who said what, free of any wire's spelling.

A part's identity (ids of a store, positions on a wire) is not here: that belongs to the doors.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text of one turn, exactly as it was said."""

    text: str


Part = TextPart


@dataclass(frozen=True, slots=True)
class Turn:
    """One message: a role and its parts in order."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The parts' text, joined with nothing between."""
        return "".join(part.text for part in self.parts)


def said(role: Role, text: str) -> Turn:
    """A turn of one text part."""
    return Turn(role, (TextPart(text),))
