"""What must come back, as a fixture says it: rules for values, phases of a stream, a whole answer.

Thread: any
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class Check(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One rule for one value; `at` is a JSON pointer (RFC 6901). Exactly one of the others is given."""

    at: str = ""
    equals: Any = UNSET
    absent: Literal[True] | UnsetType = UNSET
    prefix: str | UnsetType = UNSET
    has: str | UnsetType = UNSET
    unsigned: Literal[True] | UnsetType = UNSET
    length: int | UnsetType = UNSET
    keys: list[str] | UnsetType = UNSET

    def __post_init__(self) -> None:
        given = [name for name in self.__struct_fields__ if name != "at" and getattr(self, name) is not UNSET]
        if len(given) != 1:
            raise ValueError(f"a check has one rule, not {len(given)}")
        if self.at and not self.at.startswith("/"):
            raise ValueError(f"`{self.at}` is no JSON pointer")


class Phase(Struct, forbid_unknown_fields=True, frozen=True):
    """One phase of a stream with what it must say; a bare name (`"content"`) is one that may say anything.

    `content` and `reasoning` are the texts of all consecutive deltas joined; `calls` are the calls of tools that they
    come to, as [name, arguments]; `usage` and `error` hold the fields that must be there.
    """

    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    calls: list[tuple[str, Any]] | UnsetType = UNSET
    finish: str | UnsetType = UNSET
    usage: dict[str, int] | UnsetType = UNSET
    error: dict[str, Any] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if len(self.said()) != 1:
            raise ValueError("a phase has one name")

    def said(self) -> dict[str, Any]:
        """Name -> what it must say."""
        names = self.__struct_fields__
        return {name: getattr(self, name) for name in names if getattr(self, name) is not UNSET}


Bare = Literal["role", "content", "reasoning", "calls", "finish", "usage", "error", "done"]
ENVELOPE = ("message", "type", "code", "param")


class Expect(Struct, forbid_unknown_fields=True, frozen=True):
    """What must come back; what is not named is not looked at.

    `code`, `type`, `message` and `param` are an error's, whose fields are then exactly `envelope`; `text` is
    the whole body. With `sse` (once for each of `choices`) the pointers of `fields` begin with the index of a
    frame. `told` looks into the JSON that a scripted reply with `tell` begins with, and at `/messages`, read
    back from its ChatML.
    """

    status: int = 200
    headers: dict[str, Check | str] = {}
    code: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    message: str | Check | UnsetType = UNSET
    param: str | UnsetType | None = UNSET
    envelope: tuple[str, ...] = ENVELOPE
    fields: tuple[Check, ...] = ()
    told: tuple[Check, ...] = ()
    text: str | Check | UnsetType = UNSET
    sse: tuple[Bare | Phase, ...] | UnsetType = UNSET
    choices: int = 1
