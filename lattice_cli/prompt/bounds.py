"""How large a template may make things: checks before an operation, a filter or a method of a string makes them.

Knows values and lengths; knows no jinja.

Thread: any
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

MOST_CHARACTERS = 32 << 20  # twice the largest body that is read
_ITEM = 32  # a list's item counts as so many characters
_WIDTHS = frozenset(("batch", "center", "indent", "slice", "tojson", "truncate", "wordwrap"))
_WIDE = re.compile(r"%[^%a-zA-Z]*(\d{5}|\*)|\{[^}]*(\d{5}|\{)")


class TemplateRunaway(Exception):
    """A template ran for too long, or made something too large."""


def bounded(length: int) -> None:
    """Raises: TemplateRunaway for a length that nothing may have."""
    if length > MOST_CHARACTERS:
        raise TemplateRunaway("it makes a text without end")


def joined(parts: Iterable[Any]) -> str:
    """As `"".join` of the parts' texts; a generator is left as soon as they are too long together."""
    texts, length = [], 0
    for part in parts:
        texts.append(str(part))
        length += len(texts[-1])
        bounded(length)
    return "".join(texts)


class Printed(list[Any]):
    """What a macro or a block has printed so far: jinja would look at it only when all of it is there."""

    length = 0

    def append(self, part: Any) -> None:
        super().append(part)
        self.length += len(str(part))
        bounded(self.length)

    def extend(self, parts: Iterable[Any]) -> None:
        for part in parts:
            self.append(part)


def size(value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, int):
        return value.bit_length()
    return len(value) * _ITEM if isinstance(value, (list, tuple, dict)) else 0


def widths(values: Iterable[Any]) -> None:
    """Numbers that make long texts and lists of short ones."""
    for value in values:
        if isinstance(value, int):
            bounded(value * _ITEM)


def operates(operator: str, left: Any, right: Any) -> None:
    """`+`, `*`, `**` and `%`, before they are computed."""
    numbers = isinstance(left, int) and isinstance(right, int)
    if operator == "+" or (operator == "*" and numbers):
        bounded(size(left) + size(right))
    elif operator == "*" and (isinstance(left, int) or isinstance(right, int)):
        count, thing = (left, right) if isinstance(left, int) else (right, left)
        bounded(size(thing) * count)
    elif operator == "**" and numbers:
        bounded(size(left) * max(right, 0) * _ITEM)
    elif operator == "%" and isinstance(left, str):
        formats(left, (right,))


def grows(method: str, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """A string's method, before it is called."""
    if method == "replace" and len(args) >= 2:
        bounded(len(text) + text.count(str(args[0])) * size(args[1]))
    elif method == "join" and args and isinstance(args[0], (list, tuple)):
        bounded(sum(map(size, args[0])) + len(text) * len(args[0]))
    elif method.startswith("format"):
        formats(text, (*args, *kwargs.values()))
    else:
        widths(args)


def formats(form: str, values: tuple[Any, ...]) -> None:
    if _WIDE.search(form):
        raise TemplateRunaway("it formats a text without end")
    bounded(len(form) * (1 + sum(map(size, values))) if len(form) > 1000 else 0)


def watched_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter with bounds: those that jinja hands its context take the value after it."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        value = args[first] if len(args) > first else None
        if name in _WIDTHS:
            widths((*args[first + 1 :], *kwargs.values()))
        elif name == "replace" and len(args) > first + 2:
            grows("replace", str(value), args[first + 1 :], {})
        elif name == "join" and isinstance(value, (list, tuple)):
            separator = args[first + 1] if len(args) > first + 1 else kwargs.get("d", "")
            grows("join", str(separator), (value,), {})
        elif name == "format":
            formats(str(value), (*args[first + 1 :], *kwargs.values()))
        made = function(*args, **kwargs)
        bounded(size(made))
        return made

    return watched
