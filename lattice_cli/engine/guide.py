"""Grammars: a Constraint -> a CompiledGuide that rows are held to, through llguidance.

A door compiles before it queues a job, so that what cannot be enforced is refused; the engine then finds it in the
cache. Knows bytes, ids and bits; knows no tensors. What a row does with it is in guided.py.

Thread: any
"""

from __future__ import annotations

import json
import re
import threading
import time
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lattice_cli.errors import InvalidField
from lattice_cli.job import Constraint
from lattice_cli.model.card import ModelCard

if TYPE_CHECKING:
    from lattice_cli.engine.vocabulary import Vocabulary

KEPT_GRAMMARS = 64  # of each model; a compiled one holds 0.1-10 MB
# NOTE: but one like `a{1000000}` holds 80 MB, and 64 such would be a way to fill a server. Nothing tells the size;
# what took long to compile is large: 0.16 s were 80 MB, 0.33 s were 160.
KEPT_COMPILE_S = 1.0

# Between the tokens of JSON: at most a line break and an indentation, or else a small model pads its reply with
# white space up to its limit (report 65). `lenient` would let keywords that cannot be enforced pass.
_JSON: Any = {"whitespace_pattern": r"[\x20\t]{1,8}|\r?\n[\x20\t]{0,32}", "lenient": False}
_GBNF = re.compile(r"^\s*root\s*::=", re.MULTILINE)
_PARAMS = {
    "json_schema": "response_format",
    "regex": "guided_regex",
    "lark": "guided_grammar",
    "choice": "guided_choice",
}


@dataclass(frozen=True, slots=True)
class CompiledGuide:
    """A grammar ready to follow; shared by all rows that have it. `start` makes a matcher of one row's own."""

    vocabulary: Vocabulary
    constraint: Constraint
    _first: Any

    def start(self) -> Any:
        """An llguidance matcher at the grammar's beginning. Cost: microseconds."""
        return self._first.deep_copy()


class Shelf:
    """The compiled grammars of one model, the latest last."""

    def __init__(self, card: ModelCard) -> None:
        from lattice_cli.engine.vocabulary import Vocabulary

        self.vocabulary = Vocabulary(card)
        self._guides: OrderedDict[tuple[str, str], tuple[Any, float]] = OrderedDict()

    def find(self, key: tuple[str, str]) -> Any:
        """The matcher that was kept; None for none."""
        found = self._guides.get(key)
        if found is None:
            return None
        self._guides.move_to_end(key)
        return found[0]

    def keep(self, key: tuple[str, str], first: Any, compile_s: float) -> None:
        """The oldest make room, as long as there is one beside the newest."""
        self._guides[key] = first, compile_s
        self._guides.move_to_end(key)
        while len(self._guides) > 1 and (
            len(self._guides) > KEPT_GRAMMARS or sum(cost_s for _, cost_s in self._guides.values()) > KEPT_COMPILE_S
        ):
            self._guides.popitem(last=False)

    def __len__(self) -> int:
        return len(self._guides)


_shelves: weakref.WeakKeyDictionary[Any, dict[Any, Shelf]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def compile_guide(card: ModelCard, constraint: Constraint, param: str | None = None) -> CompiledGuide:
    """The grammar of `constraint` for a model. Cost: milliseconds, with the first one of a model about a second.

    `param` is the field that an error names; by default the usual one of the constraint's kind.
    Raises: InvalidField with the reason, for a grammar that is malformed, impossible or beyond what can be enforced.
    """
    param = param or _PARAMS.get(constraint.kind)
    with _lock:
        shelves = _shelves.setdefault(card.tokenizer, {})
        shelf = shelves.get((card.end_ids, card.think))
        if shelf is None:
            shelf = shelves[card.end_ids, card.think] = Shelf(card)
        key = (constraint.kind, constraint.text)
        first = shelf.find(key)
    if first is None:
        began_s = time.monotonic()
        first = _compile(shelf.vocabulary, constraint, param)
        with _lock:
            shelf.keep(key, first, time.monotonic() - began_s)
    return CompiledGuide(shelf.vocabulary, constraint, first)


def _compile(vocabulary: Vocabulary, constraint: Constraint, param: str | None) -> Any:
    import llguidance

    try:
        grammar = _grammar(constraint)
        matcher = llguidance.LLMatcher(vocabulary.library, grammar, log_level=0)
    except ValueError as error:  # UnicodeEncodeError is one: half a surrogate pair
        raise _refused(constraint, str(error), param) from error
    if not matcher.is_error():
        matcher.compute_bitmask()  # the first mask is the dear one, and copies have it too
        if matcher.is_error():
            raise _refused(constraint, "nothing can fulfil it", param)
        return matcher
    raise _refused(constraint, matcher.get_error(), param)


def _grammar(constraint: Constraint) -> str:
    """In llguidance's own form. Raises: ValueError with the reason."""
    from llguidance import LLMatcher

    kind, text = constraint.kind, constraint.text
    if kind == "json_schema":
        schema = {"{}": '{"type":"object"}', "true": "{}"}.get(text, text)
        if text == "false":
            raise ValueError("nothing can fulfil it")
        return str(LLMatcher.grammar_from_json_schema(schema, overrides=_JSON))
    if kind == "regex":
        return str(LLMatcher.grammar_from_regex(text))
    if kind == "choice":
        choices = json.loads(text)
        if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
            raise ValueError("it must be a list of at least one string")
        return str(LLMatcher.grammar_from_regex("|".join(map(_literal, choices))))
    if kind == "lark":
        if not text.strip():
            raise ValueError("it is empty")
        return str(LLMatcher.grammar_from_lark(_from_gbnf(text) if _GBNF.search(text) else text))
    raise ValueError(f"there is no grammar language `{kind}`")


def _from_gbnf(text: str) -> str:
    """llama.cpp's grammar language (`root ::= ...`) as Lark."""
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    try:
        return str(gbnf_to_lark(text))
    except Exception as error:  # UPSTREAM: llguidance (1.9) raises Exception itself, and its own child of it
        if type(error) not in (Exception, GbnfToLarkError, RecursionError):
            raise
        raise ValueError(str(error)) from error


def _literal(text: str) -> str:
    """A regex that only `text` matches."""
    return "".join(c if c.isalnum() or ord(c) > 127 else f"\\x{{{ord(c):X}}}" for c in text)


def _refused(constraint: Constraint, reason: str, param: str | None) -> InvalidField:
    told = " ".join(reason.partition("<state>")[0].partition("<backtrace>")[0].split())[:300]
    named = {"json_schema": "schema", "lark": "grammar", "choice": "choice"}.get(constraint.kind, constraint.kind)
    return InvalidField(f"this {named} cannot be enforced: {told}", param=param)
