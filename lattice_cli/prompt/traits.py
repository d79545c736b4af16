"""What a chat template can do, found by asking it: small conversations are rendered and looked at.

Text of a template says little: macros, defaults and dead branches hide what it prints. Knows templates and what
they print; knows no model.

Thread: any
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache, partial
from typing import Any

from lattice_cli.errors import ModelError
from lattice_cli.model.card import ModelCard


class SystemPlace(Enum):
    """Where a template prints the words of the system."""

    ANYWHERE = "wherever they are said"
    FIRST = "at the beginning only"
    NOWHERE = "it has no such role"


@dataclass(frozen=True, slots=True)
class Traits:
    """`renders_tools`: definitions of tools are printed; `dialect` names how calls are spelled (engine/calls.py), None
    where nobody knows. `thinking_switch`: `enable_thinking` (or `thinking`) changes what is printed; `thinks`: the
    prompt ends inside an open thought when nobody says otherwise. `tool_system` is of the template with tools.
    """

    renders_tools: bool = False
    dialect: str | None = None
    thinking_switch: bool = False
    thinks: bool = False
    system: SystemPlace = SystemPlace.ANYWHERE
    tool_system: SystemPlace = SystemPlace.ANYWHERE

    @property
    def calls_tools(self) -> bool:
        """Whether tools can be offered, and calls of them understood."""
        return self.renders_tools and self.dialect is not None


# What mlx-lm's tool_parsers are called here.
_OWN_NAMES = {"json_tools": "json"}


def speech_of(card: ModelCard) -> str | None:
    """The dialect of a model's calls; None where it makes none that we know."""
    return traits_of(card).dialect


def traits_of(card: ModelCard) -> Traits:
    """What `card`'s template does. Cost: some renderings, once for each template."""
    if card.chat_template is None:
        return Traits()
    traits = _ask(card.chat_template, card.tool_template or card.chat_template, card.think, card.bos_token)
    dialect = _OWN_NAMES.get(card.tool_parser or "", card.tool_parser) or traits.dialect
    scripted = card.format.kind == "script" and card.tool_parser is not None
    renders = traits.renders_tools or scripted
    return replace(traits, renders_tools=renders, dialect=dialect if renders else None)


_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe description",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string", "description": "probe"}}},
    },
}
_CALL = {"id": "abcdef123", "type": "function", "function": {"name": "probe_tool", "arguments": {"probe_key": "x y"}}}
_ASKED = {"role": "user", "content": "probe question"}
_CALLED: list[dict[str, Any]] = [
    _ASKED,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": "probe result", "tool_call_id": "abcdef123", "name": "probe_tool"},
]
# What a template prints of a call, or of how to make one -> the dialect.
_SPELLED = (
    ("qwen3_coder", re.compile(r"<tool_call>\s*<function=(probe_tool|example_\w+|\w*name\w*)>\s*<parameter=")),
    ("json", re.compile(r'<tool_call>\s*\{+\s*\\?"name"')),
    ("mistral", re.compile(r"\[TOOL_CALLS\]")),
    ("llama3_json", re.compile(r'(?<!<tool_call>)\s*\{"name": "?(probe_tool|function name)"?, "parameters": ')),
)


@lru_cache(maxsize=64)
def _ask(chat: str, tool: str, think: tuple[str, str] | None, bos_token: str) -> Traits:
    def printed(source: str, messages: list[dict[str, Any]], **values: Any) -> str:
        return _printed(source, {"messages": messages, "bos_token": bos_token, **values})

    plain = printed(chat, [_ASKED])
    offered = printed(tool, [_ASKED], tools=[_TOOL])
    on, off = ({"enable_thinking": switch, "thinking": switch} for switch in (True, False))
    return Traits(
        renders_tools="probe_tool" in offered,
        dialect=_dialect(printed(tool, _CALLED, tools=[_TOOL]), offered),
        thinking_switch=printed(chat, [_ASKED], **on) != printed(chat, [_ASKED], **off),
        thinks=think is not None and plain.rstrip().endswith(think[0]),
        system=_system_place(chat, printed),
        tool_system=_system_place(tool, partial(printed, tools=[_TOOL])),
    )


def _system_place(source: str, printed: Callable[..., str]) -> SystemPlace:
    first: dict[str, Any] = {"role": "system", "content": "probe-system-1"}
    later = [{"role": "system", "content": f"probe-system-{number}"} for number in (2, 3)]
    answered = {"role": "assistant", "content": "probe answer"}
    text = printed(source, [first, later[0], _ASKED, answered, later[1], _ASKED])
    if all(f"probe-system-{number}" in text for number in (1, 2, 3)):
        return SystemPlace.ANYWHERE
    return SystemPlace.FIRST if "probe-system-1" in printed(source, [first, _ASKED]) else SystemPlace.NOWHERE


def _dialect(called: str, offered: str) -> str | None:
    """What a printed call shows, else what the offer of tools asks for."""
    for text in (called.removeprefix(offered), called, offered):
        for name, pattern in _SPELLED:
            if pattern.search(text):
                return name
    return None


def _printed(source: str, values: dict[str, Any]) -> str:
    """What a template prints; nothing where it refuses or fails."""
    from lattice_cli.prompt.sandbox import TEMPLATE_ERRORS, TemplateRefusal, render

    try:
        return render(source, {"add_generation_prompt": True, "eos_token": "", "tools": None, **values})
    except (ModelError, TemplateRefusal, *TEMPLATE_ERRORS):
        return ""
