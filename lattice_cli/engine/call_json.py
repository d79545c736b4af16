"""`json`, the dialect of Hermes, Qwen2.5 and Qwen3: <tool_call>{"name": "f", "arguments": {...}}</tool_call>

The name is said as soon as it is certain that arguments come, then the arguments as they come (see call_echo.py). A
call whose keys come in another order, or whose arguments are a text of JSON, is read whole.

Thread: worker
"""

from __future__ import annotations

import json
import re

from lattice_cli.engine.call_echo import JsonEcho
from lattice_cli.engine.call_stage import CallStage, waits

_STRING = r'"(?:[^"\\\x00-\x1f]|\\.)*"'
_HEADER = re.compile(rf'\s*\{{\s*"name"\s*:\s*({_STRING})\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{{)')
_KEYS = ("name", "arguments", "parameters", "id", "type", "function")
BEHIND = re.compile(r'(?:\s*,\s*"(?:id|type)"\s*:\s*"[^"\\]*")*\s*\}*\s*')
MOST_UNREAD = 1 << 16  # characters that may wait for the end of a call which is read whole


class JsonCalls(CallStage):
    """`json`."""

    openings: tuple[str, ...] = ("<tool_call>",)
    closing = "</tool_call>"
    _tried = 0  # ends of what may be a call that it cannot be read before

    def _begin(self) -> bool:
        body = self._held[len(self.openings[0]) :]
        found = header_of(body)
        if found is not None:
            self._held = body[found.end() :]
            return self._open(text_of(found[1]))
        return self._whole(body) if may_be_call(body) else self._no_call()

    def _open(self, name: str) -> bool:
        self._tried = 0
        self._call(name)
        self._echo = JsonEcho(self.closing)
        self._state = self._arguments
        return True

    def _no_call(self) -> bool:
        self._tried = 0
        return self._refuse(len(self.openings[0]))

    def _whole(self, body: str) -> bool:
        """A call that cannot be streamed: its end is the first marker before which it can be read."""
        ends = [found.start() for found in re.finditer(re.escape(self.closing), body[:MOST_UNREAD])]
        fresh, self._tried = ends[self._tried :], len(ends)
        for end in [*fresh, *([len(body)] if self._final else [])]:
            call = read_call(body[:end])
            if call is not None:
                self._held = body[end:].removeprefix(self.closing)
                self._call(call[0])
                self._say_arguments(call[1])
                return self._done()
        return (self._final or len(body) > MOST_UNREAD) and self._no_call()

    def _arguments(self) -> bool:
        made, self._held = self._echo.take(self._held, self._final)
        self._say_arguments(made)
        if self._echo.done:
            self._state = self._behind
            return True
        return False

    def _behind(self) -> bool:
        """Between the arguments and what ends the call."""
        found = BEHIND.match(self._held)
        at = found.end() if found else 0
        rest = self._held[at:]
        if rest.startswith(self.closing):
            self._held = rest[len(self.closing) :]
            return self._done()
        if not self._final and (not rest or waits(rest, self.closing) or unfinished_extra(rest)):
            return False
        self._held = rest
        return self._done()


def read_call(text: str) -> tuple[str, str] | None:
    """(name, arguments as JSON) of a call that is here whole; None where it is none."""
    try:
        call = json.loads(text.strip(), strict=False)
    except (ValueError, RecursionError):
        return None
    if isinstance(call, dict) and isinstance(call.get("function"), dict):
        call = call["function"]
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return call["name"], json.dumps(arguments, ensure_ascii=False)
    return call["name"], json.dumps({} if arguments is None else arguments, ensure_ascii=False)


def may_be_call(body: str) -> bool:
    """Whether what comes behind an opening may still be the JSON of a call, judged by its first key."""
    begun = body.lstrip()
    if not begun:
        return True
    inside = begun[1:].lstrip()
    if begun[0] != "{" or (inside and inside[0] != '"'):
        return False
    key, closed, _ = inside[1:].partition('"')
    return key in _KEYS if closed else any(known.startswith(key) for known in _KEYS)


def unfinished_extra(rest: str) -> bool:
    """Whether `, "id": "..."` may be on its way."""
    return re.fullmatch(r',\s*("(i|id|t|ty|typ|type)?("\s*(:\s*("[^"\\]{0,200})?)?)?)?', rest) is not None


def header_of(body: str) -> re.Match[str] | None:
    """Name and first bracket of the arguments, where a call begins as it should."""
    found = _HEADER.match(body[:MOST_UNREAD])
    return found if found and text_of(found[1]) else None


def text_of(literal: str) -> str:
    """What a JSON string says; nothing where it is none."""
    try:
        return str(json.loads(literal))
    except ValueError:
        return ""
