"""Calls in dialects that mlx-lm reads: the text between its markers is kept until its parser can read it.

UPSTREAM: mlx-lm 0.32, mlx_lm.tool_parsers: a module has `tool_call_start`, `tool_call_end` (empty: the reply's end) and
`parse_tool_call(text, tools)`, which gives one call or a list, and raises what it likes.

Thread: worker
"""

from __future__ import annotations

import importlib
import json
import re
from functools import lru_cache
from typing import Any

from lattice_cli.engine.call_stage import CallStage
from lattice_cli.errors import UnsupportedField
from lattice_cli.job import Tool, ToolSpeech
from lattice_cli.model.upstream import light_import

MOST_UNREAD = 1 << 18  # characters of one call
_FAULTS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    SyntaxError,
    RecursionError,
    MemoryError,
)


@lru_cache(maxsize=8)
def find_module(dialect: str) -> Any | None:
    """mlx-lm's parser of that name; None where there is none. Cost: 0.1 s, once."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", dialect):
        return None
    try:
        with light_import():
            module = importlib.import_module(f"mlx_lm.tool_parsers.{dialect}")
    except ImportError:
        return None
    return module if hasattr(module, "parse_tool_call") and hasattr(module, "tool_call_start") else None


class ForeignCalls(CallStage):
    """See the module."""

    def __init__(self, speech: ToolSpeech) -> None:
        super().__init__()
        module = find_module(speech.dialect)
        if module is None:
            raise UnsupportedField(f"this model calls tools in `{speech.dialect}`, which nobody reads", param="tools")
        self._parse = module.parse_tool_call
        self._closing = str(module.tool_call_end or "")
        self.openings = (str(module.tool_call_start),)
        self._tools = [_described(tool) for tool in speech.tools]

    def _begin(self) -> bool:
        opening = len(self.openings[0])
        end = self._held.find(self._closing, opening, opening + MOST_UNREAD) if self._closing else -1
        if end < 0 and not self._final:
            return len(self._held) > opening + MOST_UNREAD and self._refuse(opening)
        end = len(self._held) if end < 0 else end
        calls = self._read(self._held[opening:end])
        if not calls:
            return self._refuse(opening)
        self._held = self._held[end:].removeprefix(self._closing)
        for name, arguments in calls:
            self._call(name)
            self._say_arguments(arguments)
        return self._done()

    def _read(self, text: str) -> list[tuple[str, str]]:
        """(name, arguments as JSON) of each call; none where the parser or JSON cannot make any of it."""
        try:
            said = self._parse(text, self._tools)
            calls = said if isinstance(said, list) else [said]
            return [(str(call["name"]), _as_json(call.get("arguments"))) for call in calls]
        except _FAULTS:
            return []


def _as_json(arguments: Any) -> str:
    if isinstance(arguments, str):
        try:
            json.loads(arguments)
        except ValueError:
            return json.dumps(arguments, ensure_ascii=False)
        return arguments
    return json.dumps({} if arguments is None else arguments, ensure_ascii=False)


def _described(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters)}
    return {"type": "function", "function": function}
