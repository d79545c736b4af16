"""`qwen3_coder`: calls whose parameters are written one by one, without quotes.

    <tool_call><function=f><parameter=city>Oslo</parameter></function></tool_call>

with a line break behind each opening marker and before each closing one. Texts go out as they come; other values wait
for their end and are typed by the tool's schema. The outer markers may be missing where the tool is one of those
offered. A value may hold any of these markers: one ends it only where the next parameter or the call's end follows.

Thread: worker
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import Enum

from lattice_cli.engine.call_stage import CallStage, waits
from lattice_cli.engine.call_types import quoted_part, value_of
from lattice_cli.engine.text import held_suffix
from lattice_cli.job import Tool
from lattice_cli.prompt.signature import TEXT, Signature, Types

OUTER, OUTER_END, FUNCTION_END, PARAMETER_END = "<tool_call>", "</tool_call>", "</function>", "</parameter>"
_FUNCTION = re.compile(r"<function=([^<>\n]{1,256})>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\n]{1,256})>")
_BEGUN = re.compile(r"<(function|parameter)=[^<>\n]{0,256}\Z")
_ENDS = tuple(before + end for before in ("", "\n") for end in (PARAMETER_END, FUNCTION_END))
_NULLS = ("null", "none")
_NULLABLE = frozenset({"string", "null"})


class _End(Enum):
    """What a marker inside a value is."""

    YES = "the value's end"
    NO = "a part of the value"
    WAIT = "not certain yet"


class XmlCalls(CallStage):
    """See the module."""

    openings = (OUTER, "<function=")

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__()
        self._signatures = {tool.name: Signature(tool) for tool in tools}

    def _begin(self) -> bool:
        self._wrapped = self._held.startswith(OUTER)
        opening = OUTER if self._wrapped else "<function="
        body = self._held.removeprefix(OUTER).lstrip() if self._wrapped else self._held
        header = _FUNCTION.match(body)
        if header is None:
            going = not body or waits(body, "<function=") or _BEGUN.match(body) is not None
            return (self._final or not going) and self._refuse(len(opening))
        name, rest = header[1].strip().strip("\"'"), body[header.end() :]
        if not name or (not self._wrapped and name not in self._signatures):
            return self._refuse(len(opening))
        if not (_PARAMETER.match(rest) or rest.startswith(FUNCTION_END)):
            going = not rest or _comes(rest)
            return (self._final or not going) and self._refuse(len(opening))
        self._call(name)
        self._signature = self._signatures.get(name)
        self._keys = 0
        self._held = rest
        self._state = self._between
        return True

    def _between(self) -> bool:
        """Before a parameter, or the function's end; one of them is here whole."""
        body = self._held.lstrip()
        if body.startswith(FUNCTION_END):
            self._say_arguments("}" if self._keys else "{}")
            self._held = body[len(FUNCTION_END) :]
            self._state = self._behind
            return True
        found = _PARAMETER.match(body)
        if found is None:
            return False  # the reply ended here
        key = found[1].strip().strip("\"'")
        self._say_arguments(("{" if not self._keys else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        self._keys += 1
        self._types: Types = self._signature.types(key) if self._signature else TEXT
        self._value, self._quoted, self._first = "", False, True
        self._held = body[found.end() :]
        self._state = self._in_value
        return True

    def _behind(self) -> bool:
        body = self._held.lstrip()
        if self._wrapped and body.startswith(OUTER_END):
            self._held = body[len(OUTER_END) :]
        elif self._wrapped and not self._final and (not body or waits(body, OUTER_END)):
            return False
        return self._done()

    # Values.

    def _in_value(self) -> bool:
        if self._first and self._held:
            self._held, self._first = self._held.removeprefix("\n"), False
        places = ((self._held.find(end), end) for end in (PARAMETER_END, FUNCTION_END))
        found = min((place for place in places if place[0] >= 0), default=None)
        if found is None:
            keep = held_suffix(self._held, _ENDS)
            self._take(len(self._held) - keep)
            return False
        at, marker = found
        kind = self._kind(at, marker)
        if kind is _End.NO:
            self._take(at + len(marker))
            return True
        self._take(at - 1 if at and self._held[at - 1] == "\n" else at)
        if kind is _End.WAIT:
            return False
        self._end_value()
        self._held = self._held.removeprefix("\n").removeprefix(PARAMETER_END)
        self._state = self._between
        return True

    def _kind(self, at: int, marker: str) -> _End:
        behind = self._held[at + len(marker) :].lstrip()
        if marker == FUNCTION_END:
            return self._ends_call(behind, alone=False)
        if behind.startswith(FUNCTION_END):
            return self._ends_call(behind[len(FUNCTION_END) :].lstrip(), alone=not self._wrapped)
        following = _PARAMETER.match(behind)
        if following is not None:
            known = self._signature is None or following[1].strip() in self._signature.properties
            return _End.YES if known or self._held[:at].endswith("\n") else _End.NO
        if not behind or _comes(behind):
            return _End.YES if self._final else _End.WAIT
        return _End.NO

    def _ends_call(self, behind: str, *, alone: bool) -> _End:
        """What the end of a function is, by what comes behind it."""
        if alone or behind.startswith((OUTER_END, *self.openings)):
            return _End.YES
        if not behind or any(waits(behind, one) for one in (OUTER_END, *self.openings)):
            return _End.YES if self._final else _End.WAIT
        return _End.NO

    def _take(self, length: int) -> None:
        """The next `length` characters are the value's for certain."""
        text, self._held = self._held[:length], self._held[length:]
        if not self._quoted:
            self._value += text
            if not self._value or not self._streams():
                return
            text, self._value, self._quoted = self._value, "", True
            self._say_arguments('"')
        self._say_arguments(quoted_part(text))

    def _streams(self) -> bool:
        """Whether the value is a text, whatever comes."""
        if self._types == TEXT:
            return True
        begun = self._value.strip().lower()
        return self._types == _NULLABLE and not any(null.startswith(begun) for null in _NULLS)

    def _end_value(self) -> None:
        self._say_arguments('"' if self._quoted else value_of(self._value, self._types))


def _comes(text: str) -> bool:
    """Whether a parameter, or the function's end, may be on its way."""
    return waits(text, FUNCTION_END) or waits(text, "<parameter=") or _BEGUN.match(text) is not None
