"""Calls whose arguments are JSON: `json` (Hermes, Qwen2.5, Qwen3), `mistral` and `llama3_json`.

    json         <tool_call>{"name": "f", "arguments": {...}}</tool_call>
    mistral      [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]    or    [TOOL_CALLS]f[ARGS]{...}
    llama3_json  {"name": "f", "parameters": {...}}    as the whole reply, more of them after a semicolon

The name is said as soon as it is certain that arguments come, then the arguments as they come (see call_echo.py). A
`json` call may name a tool that was not offered: the client is told of it, as vLLM does. `llama3_json` has no marker,
so there only offered names make a call. A call whose keys come in another order, or whose arguments are a text of
JSON, is read whole.

Thread: worker
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from lattice_cli.engine.call_echo import JsonEcho
from lattice_cli.engine.call_stage import CallStage, waits

_STRING = r'"(?:[^"\\\x00-\x1f]|\\.)*"'
_HEADER = re.compile(rf'\s*\{{\s*"name"\s*:\s*({_STRING})\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{{)')
_KEYS = ("name", "arguments", "parameters", "id", "type", "function")
_BEHIND = re.compile(r'(?:\s*,\s*"(?:id|type)"\s*:\s*"[^"\\]*")*\s*\}*\s*')
MOST_UNREAD = 1 << 16  # characters that may wait for the end of a call which is read whole


class JsonCalls(CallStage):
    """`json`."""

    openings: tuple[str, ...] = ("<tool_call>",)
    closing = "</tool_call>"
    _tried = 0  # ends of what may be a call that it cannot be read before

    def _begin(self) -> bool:
        body = self._held[len(self.openings[0]) :]
        found = _header(body)
        if found is not None:
            self._held = body[found.end() :]
            return self._open(_text(found[1]))
        return self._whole(body) if _may_be_call(body) else self._no_call()

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
        found = _BEHIND.match(self._held)
        at = found.end() if found else 0
        rest = self._held[at:]
        if rest.startswith(self.closing):
            self._held = rest[len(self.closing) :]
            return self._done()
        if not self._final and (not rest or waits(rest, self.closing) or _unfinished_extra(rest)):
            return False
        self._held = rest
        return self._done()


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
        found = _header(begun) if listed else self._named.match(begun[:MOST_UNREAD])
        if found is not None:
            self._in_list = listed
            self._held = begun[found.end() :]
            return self._open(_text(found[1]) if listed else found[1])
        could = _may_be_call(begun) if listed else re.fullmatch(r"\s*[\w.-]*\s*(\[[\w\[\]\s]*)?", begun)
        return (self._final or not could or len(begun) > MOST_UNREAD) and self._no_call()

    def _behind(self) -> bool:
        found = _BEHIND.match(self._held) if self._in_list else None
        at = found.end() if found else 0
        after = self._next.match(self._held, at)
        rest = self._held[after.end() :] if after else ""
        if not self._final and (not rest or _unfinished_extra(self._held[at:])):
            return False
        if self._in_list and after and after[1] == ",":
            header = _header(rest)
            if header is not None:
                self._held = rest[header.end() :]
                return self._open(_text(header[1]))
            if not self._final and _may_be_call(rest) and len(rest) <= MOST_UNREAD:
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
        header = _header(self._held)
        if header is not None and _text(header[1]) in self._names:
            name, self._held = _text(header[1]), self._held[header.end() :]
            return self._open(name)
        if header is None and not self._final and _may_be_call(self._held) and len(self._held) <= MOST_UNREAD:
            return False
        return self._refuse(0)

    def _behind(self) -> bool:
        found = _BEHIND.match(self._held)
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


def _may_be_call(body: str) -> bool:
    """Whether what comes behind an opening may still be the JSON of a call, judged by its first key."""
    begun = body.lstrip()
    if not begun:
        return True
    inside = begun[1:].lstrip()
    if begun[0] != "{" or (inside and inside[0] != '"'):
        return False
    key, closed, _ = inside[1:].partition('"')
    return key in _KEYS if closed else any(known.startswith(key) for known in _KEYS)


def _unfinished_extra(rest: str) -> bool:
    """Whether `, "id": "..."` may be on its way."""
    return re.fullmatch(r',\s*("(i|id|t|ty|typ|type)?("\s*(:\s*("[^"\\]{0,200})?)?)?)?', rest) is not None


def _header(body: str) -> re.Match[str] | None:
    """Name and first bracket of the arguments, where a call begins as it should."""
    found = _HEADER.match(body[:MOST_UNREAD])
    return found if found and _text(found[1]) else None


def _text(literal: str) -> str:
    """What a JSON string says; nothing where it is none."""
    try:
        return str(json.loads(literal))
    except ValueError:
        return ""
