"""Text from outside never becomes a control token, whatever it spells and wherever a template puts it.

Before a template sees a text, the first character of everything in it that looks like the beginning of a control
token gives its place to a stand-in: a private-use character that the conversation does not hold. Lengths stay, so
templates trim, slice and search as ever, but no `<think>` of a user answers a template's search for one, and no
piece that a template cuts out can make a control token of what is left. After rendering, the control tokens that
are spelled are the template's own; the stand-ins become what they stand for, and are encoded as text.

An answer of the assistant's that begins with a thinking block keeps the block's markers: templates look for them. Some
servers send such a block without its opening marker, because a template had opened it.

Knows texts and stand-ins; knows no conversation.

Thread: any
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from lattice_cli.model.card import ControlTokenizer, ModelCard

FIRST_STAND_IN, LAST_STAND_IN = 0xF0000, 0x10FFFD
_PRIVATE = f"{chr(FIRST_STAND_IN)}-{chr(LAST_STAND_IN)}"

# Keys of tool definitions and words of their schemas that templates look up or compare: never changed.
SCHEMA_WORDS = frozenset((
    "$defs", "$ref", "additionalProperties", "allOf", "anyOf", "array", "boolean", "const", "default",
    "definitions", "description", "enum", "examples", "exclusiveMaximum", "exclusiveMinimum", "format",
    "function", "integer", "items", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum",
    "multipleOf", "name", "not", "null", "nullable", "number", "object", "oneOf", "parameters", "pattern",
    "prefixItems", "properties", "required", "return", "response", "strict", "string", "title", "type",
    "uniqueItems",
))  # fmt: skip


class Shield:
    """The stand-ins of one rendering. `think` are markers that are hidden, too, where no token spells them."""

    def __init__(self, card: ModelCard) -> None:
        tokenizer = card.tokenizer
        self._tokenizer = tokenizer
        self._literal = tokenizer.literal if isinstance(tokenizer, ControlTokenizer) else None
        spellings = self._literal.spellings if self._literal else ()
        self._think = card.think
        self._opening, self._tails = _beginnings((*spellings, *(card.think or ())))
        self._stand_in_of: dict[str, str] = {}
        self._stands_for: dict[int, str] = {}

    # Before rendering.

    def text(self, text: str) -> str:
        """A text from outside, as the template may see it."""
        if self._literal is not None:
            text = self._literal.settled(text)
        return self._opening.sub(lambda found: self._stand_in(found[0]), text)

    def name(self, text: str) -> str:
        """A name, a key: short enough to be put between a template's `<` and `>`."""
        hidden = self.text(text)
        if not text or text in SCHEMA_WORDS or hidden[0] != text[0] or not self._tails.go_on_in(text):
            return hidden
        return self._stand_in(text[0]) + hidden[1:]

    def answer(self, text: str) -> str:
        """An assistant's text: a thinking block that it begins with keeps its markers, or its closing one where the
        opening one was left out and the closing one has a line of its own.
        """
        opening, closing = self._think or ("", "")
        visible = text.lstrip()
        if not visible.startswith(opening):
            opening = ""
        end = visible.find(closing, len(opening)) if closing else -1
        if end < 0 or not (opening or _own_line(visible, end, closing)):
            return self.text(text)
        thought, rest = visible[len(opening) : end], visible[end + len(closing) :]
        margin = text[: len(text) - len(visible)]
        return f"{margin}{opening}{self.text(thought)}{closing}{self.text(rest)}"

    def value(self, value: Any) -> Any:
        """Any JSON value: its texts and keys hidden."""
        match value:
            case str():
                return value if value in SCHEMA_WORDS else self.text(value)
            case Mapping():
                return {self.name(str(key)): self.value(one) for key, one in value.items()}
            case list() | tuple():
                return [self.value(one) for one in value]
        return value

    def mark(self) -> str:
        """A stand-in for nothing: it marks a place."""
        return self._stand_in("")

    # After rendering.

    def seen(self, rendered: str) -> str:
        """What a rendered text says."""
        return rendered.translate(self._stands_for) if self._stands_for else rendered

    def ids(self, rendered: str) -> tuple[int, ...]:
        """Ids of a rendered text: those of what it says, where nothing in it only looks like a control token."""
        said = self.seen(rendered)
        if self._literal is None or said == rendered or self._literal.places(said) == self._literal.places(rendered):
            return tuple(self._tokenizer.encode(said))
        return tuple(self._literal.encode(rendered, self._stands_for))

    def _stand_in(self, character: str) -> str:
        found = self._stand_in_of.get(character)
        if found is None:
            number = FIRST_STAND_IN + len(self._stand_in_of)
            found = self._stand_in_of[character] = chr(number)
            self._stands_for[number] = character
        return found


def _own_line(text: str, at: int, marker: str) -> bool:
    end = at + len(marker)
    return (at == 0 or text[at - 1] == "\n") and (end == len(text) or text[end] == "\n")


class _Tails(NamedTuple):
    """Spellings without their first characters, with a character between them that is in none; all their endings; the
    longest spelling's length.
    """

    joined: str
    endings: set[str]
    longest: int

    def go_on_in(self, text: str) -> bool:
        """Whether `text` may continue what a template began to spell: it lies in a spelling or begins with a rest."""
        return text in self.joined or any(text[:length] in self.endings for length in range(1, self.longest))


@lru_cache(maxsize=16)
def _beginnings(spellings: Sequence[str]) -> tuple[re.Pattern[str], _Tails]:
    """What is hidden in a text, and what may follow a control token's first character.

    A stand-in may stand for nothing else, so private-use characters that a text brings are hidden, too.
    """
    seconds: dict[str, set[str]] = {}
    for spelling in spellings:
        seconds.setdefault(spelling[0], set()).add(spelling[1:2])
    parts = [f"[{_PRIVATE}]"]
    for first, after in sorted(seconds.items()):
        follows = "" if "" in after else f"(?=[{''.join(map(re.escape, sorted(after)))}]|\\Z)"
        parts.append(re.escape(first) + follows)
    rests = (spelling[at:] for spelling in spellings for at in range(1, len(spelling)))
    longest = max(map(len, spellings), default=0)
    joined = chr(LAST_STAND_IN).join(spelling[1:] for spelling in spellings)
    return re.compile("|".join(parts)), _Tails(joined, set(rests), longest)
