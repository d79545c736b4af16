"""Who said what, free of any wire's spelling.

A part's identity (ids of a store, positions on a wire) is not here: that belongs to the doors.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text of one turn, exactly as it was said."""

    text: str


Part = TextPart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant made. `arguments` is its JSON text, as a client sent it."""

    id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class Turn:
    """One message: a role and its parts in order; no parts where a wire had no content.

    `name` is the speaker's, or the tool's. `tool_calls` and `reasoning` (thoughts that were told apart from the
    answer) belong to an assistant, `tool_call_id` to a tool: which call its text answers.
    """

    role: Role
    parts: tuple[Part, ...] = ()
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        """The parts' text, joined with nothing between."""
        return "".join(part.text for part in self.parts)


def said(role: Role, text: str) -> Turn:
    """A turn of one text part."""
    return Turn(role, (TextPart(text),))
