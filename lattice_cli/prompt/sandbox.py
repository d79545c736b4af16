"""Jinja for templates that come with weights from strangers: no way out, and no way to run or to grow without end.

jinja's own immutable sandbox keeps a template from Python's insides. Beyond that, each turn of a loop and each call
of a macro looks at a budget of processor time, and no text or list may be longer than a bound: that is looked at
where templates make things grow (`+`, `*`, `~`, `%`, macros, blocks, filters, methods of strings, the rendered text
itself).

Knows templates; knows no conversation and no tokens. Imported late: jinja takes 60 ms.

Thread: any
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import ext, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from lattice_cli.errors import ModelError
from lattice_cli.prompt.bounds import Printed, TemplateRunaway, bounded, grows, joined, operates, size, watched_filter

__all__ = ["TEMPLATE_ERRORS", "TemplateRefusal", "TemplateRunaway", "joined", "render", "tick"]

RENDER_CPU_S = 5.0  # a conversation of a million tokens takes well under one

_until_s: ContextVar[float] = ContextVar("until_s")  # a reading of the rendering thread's processor time


class TemplateRefusal(Exception):
    """A template called `raise_exception`: its way to refuse a conversation."""


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
    sandbox.filters = {name: watched_filter(name, made) for name, made in sandbox.filters.items()}
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


class _Code(CodeGenerator):
    """Macros, `set` blocks and recursive loops print into a list with a bound."""

    def buffer(self, frame: Frame) -> None:
        frame.buffer = self.temporary_identifier()
        self.writeline(f"{frame.buffer} = environment.printed()")


class _Sandbox(ImmutableSandboxedEnvironment):
    """See the module."""

    code_generator_class = _Code
    printed = Printed
    intercepted_binops = frozenset(("+", "*", "**", "%"))
    concat = staticmethod(joined)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        operates(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        text = getattr(getattr(called, "__wrapped__", called), "__self__", None)
        if isinstance(text, str):
            grows(called.__name__, text, args, kwargs)
        made = super().call(context, called, *args, **kwargs)
        bounded(size(made))
        return made

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Watch().visit(source), *args, **kwargs)
