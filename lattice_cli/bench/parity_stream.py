"""A streamed answer against its phases: role opener, texts, finish, usage, error, [DONE], and nothing else.

All consecutive deltas of one kind are one phase. A frame belongs to the first phase it can open, so whatever
comes twice, too early or after the end is the first divergence.

Knows OpenAI's frames; knows no socket.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from sseclient import SSEClient

from lattice_cli.bench.parity_expect import Bare, Phase
from lattice_cli.bench.parity_rule import Divergence, Frame, shown

JOINED = ("content", "reasoning", "calls")
OBJECTS = ("chat.completion.chunk", "text_completion")
HEAD = ("id", "created", "model")


def read_frames(body: bytes) -> list[Frame]:
    """Every event in order; what is not JSON stays text."""
    frames: list[Frame] = []
    for event in SSEClient(iter((body,))).events():
        try:
            value = msgspec.json.decode(event.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            value = event.data
        frames.append(Frame(event.event or "message", value))
    return frames


def kind_of(frame: Frame) -> str:
    """Which phase a frame belongs to, or what is wrong with it."""
    value = frame.value
    if frame.event != "message":
        return f"an event named {frame.event}"
    if value == "[DONE]":
        return "done"
    if not isinstance(value, dict):
        return "no JSON object"
    if "error" in value:
        return "error"
    if value.get("choices") == [] and isinstance(value.get("usage"), dict):
        return "usage"
    try:
        (choice,) = value["choices"]
        # A completion's text is a content, too; what it ends with has no text of its own.
        delta = choice["delta"] if "delta" in choice else {"content": choice["text"] or None}
        return _kind_of_delta(delta, choice.get("finish_reason"))
    except (KeyError, TypeError, ValueError, AttributeError):
        return "no chunk of one choice"


def _kind_of_delta(delta: dict[str, Any], finish: Any) -> str:
    content, reasoning = delta.get("content"), delta.get("reasoning_content")
    if isinstance(delta.get("tool_calls"), list):
        return "calls" if finish is None and not content and not reasoning else "a call with more than a call"
    if "role" in delta:
        opens = delta["role"] == "assistant" and not content and not reasoning and finish is None
        return "role" if opens else "a role that opens nothing"
    if finish is not None:
        return "finish" if isinstance(finish, str) and not content and not reasoning else "a finish with text"
    if isinstance(content, str) and reasoning is None:
        return "content"
    if isinstance(reasoning, str) and content is None:
        return "reasoning"
    return "an empty delta"


def check_stream(frames: Sequence[Frame], phases: Sequence[Bare | Phase], choices: int) -> Divergence | None:
    """The first divergence of any choice's frames from the phases; usage, error and done are everybody's."""
    if there := _check_heads(frames):
        return there
    for choice in range(choices):
        own = [(at, frame) for at, frame in enumerate(frames) if _choice_of(frame) in (None, choice)]
        if there := _check_phases(own, phases):
            return there
    for at, frame in enumerate(frames):
        if (_choice_of(frame) or 0) >= choices:
            return Divergence(f"frame {at}", f"one of {choices} choice(s)", shown(frame.value))
    return None


def _choice_of(frame: Frame) -> int | None:
    try:
        index = frame.value["choices"][0]["index"]
    except (KeyError, TypeError, LookupError):
        return None
    return index if isinstance(index, int) else None


def _check_heads(frames: Sequence[Frame]) -> Divergence | None:
    """One id, time and model, of the right types, in all chunks."""
    chunks = [(at, frame.value) for at, frame in enumerate(frames) if kind_of(frame) in ("role", "finish", *JOINED)]
    for at, chunk in chunks:
        if chunk.get("object") not in OBJECTS:
            return Divergence(f"frame {at} /object", '"chat.completion.chunk"', shown(chunk.get("object")))
        for name, kind in zip(HEAD, (str, int, str), strict=True):
            value, first = chunk.get(name), chunks[0][1].get(name)
            if type(value) is not kind or value in ("", -1) or value != first:
                wanted = shown(first) if at != chunks[0][0] else f"a {kind.__name__}"
                return Divergence(f"frame {at} /{name}", wanted, shown(value))
    return None


def _check_phases(frames: Sequence[tuple[int, Frame]], phases: Sequence[Bare | Phase]) -> Divergence | None:
    next_at = 0
    for phase in phases:
        name, wanted = (phase, None) if isinstance(phase, str) else next(iter(phase.said().items()))
        taken: list[Any] = []
        while next_at < len(frames) and kind_of(frames[next_at][1]) == name and (not taken or name in JOINED):
            taken.append(frames[next_at][1].value)
            next_at += 1
        if not taken:
            return _missing(name, frames[next_at:])
        if there := _check_said(name, wanted, taken, f"frame {frames[next_at - 1][0]} {name}"):
            return there
    if next_at < len(frames):
        at, frame = frames[next_at]
        return Divergence(f"frame {at}", "the end of the stream", f"{kind_of(frame)}: {shown(frame.value)}")
    return None


def _missing(name: str, rest: Sequence[tuple[int, Frame]]) -> Divergence:
    if not rest:
        return Divergence("stream", name, "the end of the stream")
    at, frame = rest[0]
    return Divergence(f"frame {at}", name, f"{kind_of(frame)}: {shown(frame.value)}")


def _check_said(name: str, wanted: Any, taken: Sequence[Any], place: str) -> Divergence | None:
    if wanted is None:
        return None
    match name:
        case "content" | "reasoning":
            got: Any = "".join(_text_of(frame["choices"][0], name) for frame in taken)
        case "calls":
            got = _calls_of(taken)
            wanted = [list(one) for one in wanted]
        case "finish":
            got = taken[0]["choices"][0]["finish_reason"]
        case _:
            inner = taken[0][name]
            got = {key: inner.get(key) for key in wanted} if isinstance(inner, dict) else inner
    return None if got == wanted else Divergence(place, shown(wanted), shown(got))


def _text_of(choice: dict[str, Any], name: str) -> str:
    if "delta" not in choice:
        return str(choice["text"])
    return str(choice["delta"]["content" if name == "content" else "reasoning_content"])


def _calls_of(taken: Sequence[Any]) -> Any:
    """Deltas joined as SDKs join them: [name, arguments] of each call, or what is wrong with them."""
    calls: list[list[str]] = []
    ids: set[str] = set()
    for part in (part for frame in taken for part in frame["choices"][0]["delta"]["tool_calls"]):
        if "id" in part:
            ids.add(part["id"])
            calls.append([part["function"]["name"], ""])
        if part.get("index") != len(calls) - 1 or len(ids) != len(calls):
            return f"a call with index {part.get('index')}, and {len(calls)} begun"
        calls[-1][1] += part["function"].get("arguments", "")
    try:
        return [[name, json.loads(arguments)] for name, arguments in calls]
    except ValueError:
        return f"arguments that are no JSON: {calls}"
