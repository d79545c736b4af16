"""An answer against what its case expects: the first divergence, or none.

Thread: any
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from lattice_cli.bench.parity_call import Answer
from lattice_cli.bench.parity_expect import Check, Expect
from lattice_cli.bench.parity_rule import MISSING, Divergence, hold, look_up, same, shown
from lattice_cli.bench.parity_stream import check_stream, read_frames

TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.DOTALL)
OPEN_TURN = "<|im_start|>assistant\n"


def diverges(expect: Expect, answer: Answer) -> Divergence | None:
    """Status, headers, whole body, error, stream, fields, what was told: in this order."""
    if answer.status != expect.status:
        return Divergence("status", str(expect.status), f"{answer.status}: {_beginning(answer.body)}")
    if answer.cut is not None:
        return Divergence("body", "a whole body", f"{answer.cut}, after {_beginning(answer.body)}")
    return next(_divergences(expect, answer), None)


def _divergences(expect: Expect, answer: Answer) -> Iterator[Divergence]:
    for name, wanted in expect.headers.items():
        check = wanted if isinstance(wanted, Check) else Check(equals=wanted)
        yield from _found(hold(check, answer.headers.get(name.lower(), MISSING), f"header {name}"))
    text = answer.body.decode("utf-8", "replace")
    if expect.text is not UNSET:
        check = expect.text if isinstance(expect.text, Check) else Check(equals=expect.text)
        yield from _found(hold(check, text, "body"))
    if not _wants_json(expect):
        return
    value, content = MISSING, ""
    if expect.sse is not UNSET:
        kind = answer.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            yield Divergence("header content-type", "text/event-stream", f"{kind}: {_beginning(answer.body)}")
        frames = read_frames(answer.body)
        yield from _found(check_stream(frames, expect.sse, expect.choices))
        value = [frame.value for frame in frames]
        content = "".join(look_up(one, "/choices/0/delta/content") or "" for one in value if _speaks(one))
    else:
        try:
            value = msgspec.json.decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            yield Divergence("body", "JSON", _beginning(answer.body))
        content = look_up(value, "/choices/0/message/content")
    yield from _error_divergences(expect, value)
    for check in expect.fields:
        yield from _found(hold(check, value))
    if expect.told:
        yield from _told_divergences(expect, content)


def _found(divergence: Divergence | None) -> Iterator[Divergence]:
    if divergence is not None:
        yield divergence


def _wants_json(expect: Expect) -> bool:
    named = (expect.code, expect.type, expect.message, expect.param, expect.sse)
    return bool(expect.fields or expect.told) or any(value is not UNSET for value in named)


def _speaks(frame: Any) -> bool:
    return isinstance(look_up(frame, "/choices/0/delta/content"), str)


def _error_divergences(expect: Expect, value: Any) -> Iterator[Divergence]:
    said = {name: getattr(expect, name) for name in ("code", "type", "message", "param")}
    said = {name: wanted for name, wanted in said.items() if wanted is not UNSET}
    if not said:
        return
    for name, wanted in said.items():
        at = f"/error/{name}"
        check = msgspec.structs.replace(wanted, at=at) if isinstance(wanted, Check) else Check(at=at, equals=wanted)
        yield from _found(hold(check, value))
    yield from _found(hold(Check(at="/error", keys=list(expect.envelope)), value))


# What a scripted model was asked.


def _told_divergences(expect: Expect, content: Any) -> Iterator[Divergence]:
    try:
        told, _ = json.JSONDecoder().raw_decode(content)
    except (ValueError, TypeError):
        yield Divergence("told", "JSON of what was asked", shown(content))
        return
    told["messages"] = messages_of(told.get("prompt", ""))
    for check in expect.told:
        yield from _found(hold(check, told, "told "))


def messages_of(prompt: str) -> list[list[str]] | None:
    """The roles and texts of a bare ChatML prompt; None where it is not exactly that."""
    turns = [list(turn) for turn in TURN.findall(prompt)]
    again = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return turns if again + OPEN_TURN == prompt else None


def compare(one: Answer, other: Answer, pointer: str) -> Divergence | None:
    """Two answers that must say the same at one place."""
    decode: Callable[[bytes], Any] = msgspec.json.decode
    try:
        values = [look_up(decode(answer.body), pointer) for answer in (one, other)]
    except msgspec.DecodeError:
        return Divergence("body", "JSON", _beginning(other.body))
    if values[0] is not MISSING and same(*values):
        return None
    return Divergence(pointer, shown(values[0]), shown(values[1]))


def _beginning(body: bytes) -> str:
    return shown(body[:400].decode("utf-8", "replace"))
