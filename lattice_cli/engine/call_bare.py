"""`mistral` and `llama3_json`: calls in JSON with no marker at their end.

    mistral      [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]    or    [TOOL_CALLS]f[ARGS]{...}
    llama3_json  {"name": "f", "parameters": {...}}    as the whole reply, more of them after a semicolon

`llama3_json` has no marker at all, so there only the names of tools that were offered make a call.

Thread: worker
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lattice_cli.engine.call_json import (
    BEHIND,
    MOST_UNREAD,
    JsonCalls,
    header_of,
    may_be_call,
    text_of,
    unfinished_extra,
)  # fmt: skip


class MistralCalls(JsonCalls):
    """`mistral`."""

    openings = ("[TOOL_CALLS]",)
    closing = ""
    _named = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*(?=\{)")
    _next = re.compile(r"\s*(,|\]|)\s*")

    def _begin(self) -> bool:
        body = self._held[len(self.openings[0]) :]
        listed = body.lstrip()[:1] == "["
        begun = body.lstrip()[1:] if listed else body
        found = header_of(begun) if listed else self._named.match(begun[:MOST_UNREAD])
        if found is not None:
            self._in_list = listed
            self._held = begun[found.end() :]
            return self._open(text_of(found[1]) if listed else found[1])
        could = may_be_call(begun) if listed else re.fullmatch(r"\s*[\w.-]*\s*(\[[\w\[\]\s]*)?", begun)
        return (self._final or not could or len(begun) > MOST_UNREAD) and self._no_call()

    def _behind(self) -> bool:
        found = BEHIND.match(self._held) if self._in_list else None
        at = found.end() if found else 0
        after = self._next.match(self._held, at)
        rest = self._held[after.end() :] if after else ""
        if not self._final and (not rest or unfinished_extra(self._held[at:])):
            return False
        if self._in_list and after and after[1] == ",":
            header = header_of(rest)
            if header is not None:
                self._held = rest[header.end() :]
                return self._open(text_of(header[1]))
            if not self._final and may_be_call(rest) and len(rest) <= MOST_UNREAD:
                return False
        if self._in_list and after and after[1]:
            self._held = rest
        return self._done()


class LlamaCalls(JsonCalls):
    """`llama3_json`: the reply is a call, or it is none."""

    openings = ()
    closing = ""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self._names = frozenset(names)
        self._state = self._begin

    def _begin(self) -> bool:
        header = header_of(self._held)
        if header is not None and text_of(header[1]) in self._names:
            name, self._held = text_of(header[1]), self._held[header.end() :]
            return self._open(name)
        if header is None and not self._final and may_be_call(self._held) and len(self._held) <= MOST_UNREAD:
            return False
        return self._refuse(0)

    def _behind(self) -> bool:
        found = BEHIND.match(self._held)
        at = found.end() if found else 0
        rest = self._held[at:]
        if not rest and not self._final:
            return False
        if rest[:1] == ";":
            after = rest[1:].lstrip()
            if not after and not self._final:
                return False
            if after[:1] == "{":
                self._held, self._after_call, self._state = after, True, self._begin
                return True
        self._held = rest
        return self._done()
