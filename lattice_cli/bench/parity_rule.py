"""One value against one rule, and what to say when it does not hold.

Thread: any
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from lattice_cli.bench.parity_expect import Check

SHOWN = 300
MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where an answer is not what its case says."""

    place: str
    expected: str
    got: str


class Frame(NamedTuple):
    """One event of a stream: its name and its data, JSON where it is JSON."""

    event: str
    value: Any


def shown(value: Any) -> str:
    """A value on one line, its middle left out when it is long."""
    if value is MISSING:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 60]} ... {text[-50:]}"


def look_up(value: Any, pointer: str) -> Any:
    """What a JSON pointer leads to, MISSING where it leads nowhere (RFC 6901)."""
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(step, MISSING)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return MISSING
    return value


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: `true` is not 1, at any depth."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def hold(check: Check, whole: Any, place: str = "") -> Divergence | None:
    """The check on what its pointer leads to in `whole`; `place` stands before the pointer."""
    value = look_up(whole, check.at)
    wanted = _wanted(check, value)
    if wanted is None:
        return None
    return Divergence(f"{place}{check.at}" or "body", wanted, shown(value))


def _wanted(check: Check, value: Any) -> str | None:
    """What the check asks for, where `value` is not that."""
    if check.absent is True:
        return None if value is MISSING else "nothing"
    if isinstance(check.prefix, str):
        return None if isinstance(value, str) and value.startswith(check.prefix) else f"{shown(check.prefix)} and more"
    if isinstance(check.has, str):
        return None if isinstance(value, str) and check.has in value else f"a text with {shown(check.has)}"
    if check.unsigned is True:
        held = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return None if held else "an unsigned integer"
    if isinstance(check.length, int):
        held = isinstance(value, list | str) and len(value) == check.length
        return None if held else f"a length of {check.length}"
    if isinstance(check.keys, list):
        held = isinstance(value, dict) and set(value) == set(check.keys)
        return None if held else f"an object of {', '.join(sorted(check.keys))}"
    return None if value is not MISSING and same(check.equals, value) else shown(check.equals)
