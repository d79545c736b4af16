"""Calls of tools in a reply's text: which parser reads which dialect.

    json, qwen3_coder, mistral, llama3_json     our own, which say a call as it comes
    any other                                   mlx-lm's parser of that name: name and whole arguments at the end

Who may be called: a call with markers round it is passed on whatever it names, as vLLM and llama-server do, so that
the client can tell the model; what only looks like a call must name a tool that was offered. A call that the end of a
reply cuts off stays as it is: its arguments are then no whole JSON, and the reply's reason is `length`.

Thread: worker
"""

from __future__ import annotations

from typing import Protocol

from lattice_cli.engine.call_bare import LlamaCalls, MistralCalls
from lattice_cli.engine.call_json import JsonCalls
from lattice_cli.engine.call_stage import CallFragment, Part
from lattice_cli.engine.call_xml import XmlCalls
from lattice_cli.job import ToolSpeech

__all__ = ["CallFragment", "CallParser", "Part", "call_parser", "knows"]

OWN = ("json", "qwen3_coder", "mistral", "llama3_json")


class CallParser(Protocol):
    """A text stage behind the ChannelSplitter: text that stays content, and parts of calls, in order."""

    def push(self, text: str) -> list[Part]:
        """The parts that `text` makes certain."""

    def flush(self) -> list[Part]:
        """What was held back, at the end of a reply."""


def call_parser(speech: ToolSpeech) -> CallParser:
    """A fresh parser for one reply.

    Raises: UnsupportedField for a dialect that nobody reads (see `knows`).
    """
    match speech.dialect:
        case "json":
            return JsonCalls()
        case "qwen3_coder":
            return XmlCalls(speech.tools)
        case "mistral":
            return MistralCalls()
        case "llama3_json":
            return LlamaCalls(tool.name for tool in speech.tools)
    from lattice_cli.engine.call_foreign import ForeignCalls

    return ForeignCalls(speech)


def knows(dialect: str) -> bool:
    """Whether calls in `dialect` can be read. A foreign one has its parser imported."""
    if dialect in OWN:
        return True
    from lattice_cli.engine.call_foreign import find_module

    return find_module(dialect) is not None
