"""Jinja for templates that come with weights from strangers: no way out, and no way to run or to grow without end.

jinja's own immutable sandbox keeps a template from Python's insides. Beyond that, each turn of a loop and each call
of a macro looks at a budget of processor time, and no text or list may be longer than a bound: that is looked at
where templates make things grow (`+`, `*`, `~`, `%`, macros, filters, methods of strings, the rendered text itself).

Knows templates; knows no conversation and no tokens. Imported late: jinja takes 60 ms.

Thread: any
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, NoReturn

import jinja2
from jinja2 import ext, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from lattice_cli.errors import ModelError

RENDER_CPU_S = 5.0  # a conversation of a million tokens takes well under one
MOST_CHARACTERS = 32 << 20  # twice the largest body that is read
_ITEM = 32  # a list's item counts as so many characters
_WIDTHS = frozenset(("batch", "center", "indent", "slice", "tojson", "truncate", "wordwrap"))
_WIDE = re.compile(r"%[^%a-zA-Z]*(\d{5}|\*)|\{[^}]*(\d{5}|\{)")

_until_s: ContextVar[float] = ContextVar("until_s")  # a reading of the rendering thread's processor time


class TemplateRefusal(Exception):
    """A template called `raise_exception`: its way to refuse a conversation."""


class TemplateRunaway(Exception):
    """A template ran for too long, or made something too large."""


# What a template may raise: the sandbox's errors, Python's arithmetic and look-ups, and too deep a recursion.
TEMPLATE_ERRORS = (
    jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError,
    MemoryError, TemplateRunaway,
)  # fmt: skip


def render(source: str, values: Mapping[str, Any]) -> str:
    """The text of a template. Cost: 0.1-1 ms, and at most `RENDER_CPU_S`.

    Raises: ModelError (it cannot be compiled), TemplateRefusal, and any of TEMPLATE_ERRORS.
    """
    template = _compile(source)
    token = _until_s.set(time.thread_time() + RENDER_CPU_S)
    try:
        return template.render(values)
    finally:
        _until_s.reset(token)


@lru_cache(maxsize=64)
def _compile(source: str) -> jinja2.Template:
    """A template ready to render. Cost: 1-20 ms, once for each source."""
    try:
        return _sandbox().from_string(source)
    except (jinja2.TemplateError, RecursionError, ValueError) as error:
        raise ModelError(f"the model's chat template cannot be compiled: {error}") from error


@lru_cache(maxsize=1)
def _sandbox() -> _Sandbox:
    sandbox = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, _GenerationBlock])
    sandbox.filters["tojson"] = _tojson
    sandbox.filters = {name: _watched(name, made) for name, made in sandbox.filters.items()}
    sandbox.globals["raise_exception"] = _refuse
    sandbox.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    del sandbox.globals["lipsum"]
    return sandbox


def _refuse(message: object) -> NoReturn:
    raise TemplateRefusal(str(message)[:500])


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's templates expect it: no HTML escapes.

    Private-use characters stay as they are, also among ASCII: they stand for text (see safe.py).
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return (
        re.sub(r"[^\x00-\x7f\U000f0000-\U0010ffff]+", lambda m: json.dumps(m[0])[1:-1], text) if ensure_ascii else text
    )


# What compiled templates call.


def tick() -> str:
    """At each turn of a loop and each call of a macro; the empty text it gives is printed."""
    if time.thread_time() > _until_s.get():
        raise TemplateRunaway("it runs without end")
    return ""


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


def _size(value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, int):
        return value.bit_length()
    return len(value) * _ITEM if isinstance(value, (list, tuple, dict)) else 0


def _widths(values: Iterable[Any]) -> None:
    """Numbers that make long texts and lists of short ones."""
    for value in values:
        if isinstance(value, int):
            bounded(value * _ITEM)


class _GenerationBlock(ext.Extension):
    """`{% generation %}` marks what a trainer learns from; for rendering it is its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Watch(NodeTransformer):
    """Puts `tick` into loops and macros, and `joined` in place of `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._ticking(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._ticking(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _calling("joined", nodes.List(node.nodes)).set_lineno(node.lineno)

    def _ticking(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.Output([_calling("tick")]).set_lineno(node.lineno))
        return node


def _calling(name: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.ImportedName(f"{__name__}.{name}"), list(args), [], None, None)


class _Sandbox(ImmutableSandboxedEnvironment):
    """See the module."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))
    concat = staticmethod(joined)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, int) and isinstance(right, int)
        if operator == "+" or (operator == "*" and numbers):
            bounded(_size(left) + _size(right))
        elif operator == "*" and (isinstance(left, int) or isinstance(right, int)):
            count, thing = (left, right) if isinstance(left, int) else (right, left)
            bounded(_size(thing) * count)
        elif operator == "**" and numbers:
            bounded(_size(left) * max(right, 0) * _ITEM)
        elif operator == "%" and isinstance(left, str):
            _formats(left, (right,))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        text = getattr(getattr(called, "__wrapped__", called), "__self__", None)
        if isinstance(text, str):
            _grows(called.__name__, text, args, kwargs)
        made = super().call(context, called, *args, **kwargs)
        bounded(_size(made))
        return made

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Watch().visit(source), *args, **kwargs)


def _grows(method: str, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """A string's method, before it is called."""
    if method == "replace" and len(args) >= 2:
        bounded(len(text) + text.count(str(args[0])) * _size(args[1]))
    elif method == "join" and args and isinstance(args[0], (list, tuple)):
        bounded(sum(map(_size, args[0])) + len(text) * len(args[0]))
    elif method.startswith("format"):
        _formats(text, (*args, *kwargs.values()))
    else:
        _widths(args)


def _formats(form: str, values: tuple[Any, ...]) -> None:
    if _WIDE.search(form):
        raise TemplateRunaway("it formats a text without end")
    bounded(len(form) * (1 + sum(map(_size, values))) if len(form) > 1000 else 0)


def _watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter with bounds: those that jinja hands its context take the value after it."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        value = args[first] if len(args) > first else None
        if name in _WIDTHS:
            _widths((*args[first + 1 :], *kwargs.values()))
        elif name == "replace" and len(args) > first + 2:
            _grows("replace", str(value), args[first + 1 :], {})
        elif name == "join" and isinstance(value, (list, tuple)):
            separator = args[first + 1] if len(args) > first + 1 else kwargs.get("d", "")
            _grows("join", str(separator), (value,), {})
        elif name == "format":
            _formats(str(value), (*args[first + 1 :], *kwargs.values()))
        made = function(*args, **kwargs)
        bounded(_size(made))
        return made

    return watched
