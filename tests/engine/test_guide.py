"""Grammars over a vocabulary of bytes: what is refused, what may come next, and markers before the grammar.

Thread: any
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_cli.engine.guide import KEPT_COMPILE_S, KEPT_GRAMMARS, Shelf, compile_guide
from lattice_cli.engine.guided import RowGuide
from lattice_cli.errors import InvalidField
from lattice_cli.job import Constraint
from lattice_cli.model.card import ModelCard, ModelFormat

pytestmark = pytest.mark.pure

END, OTHER_END, CONTROL, THINK, UNTHINK, QUOTED = range(256, 262)
WORDS = {END: b"", OTHER_END: b"", CONTROL: b"", THINK: b"<think>", UNTHINK: b"</think>", QUOTED: b'{"'}


class ByteTokenizer:
    """Ids 0 to 255 are bytes, then the words above and those given."""

    def __init__(self, *more: bytes) -> None:
        self._data = [bytes([byte]) for byte in range(256)] + [WORDS[number] for number in sorted(WORDS)] + list(more)
        self.vocabulary_size = len(self._data)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._data[token_id] if 0 <= token_id < len(self._data) else b""


def card(*more: bytes, ends: frozenset[int] = frozenset({END, OTHER_END})) -> ModelCard:
    return ModelCard(
        "bytes",
        ModelFormat("script", "bytes", "none", 512, 0),
        ByteTokenizer(*more),
        512,
        ends,
        think=("<think>", "</think>"),
    )


CARD = card()
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


def guide(kind: str, text: str, opening: str | None = None, after: str = "", on: ModelCard = CARD) -> RowGuide:
    return RowGuide(compile_guide(on, Constraint(kind, text, after)), opening)


def may(follow: RowGuide) -> set[int]:
    mask = follow.allowed()
    return set(range(len(WORDS) + 256)) if mask is None else {int(token) for token in mask.nonzero()[0]}


def said(follow: RowGuide, text: bytes | Sequence[int]) -> RowGuide:
    for token in text:
        follow.advance(token)
    return follow


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        ("json_schema", '{"type":"banana"}', "banana"),
        ("json_schema", '{"type":"string","pattern":"("}', "unclosed group"),
        ("json_schema", '{"type":"string","pattern":"(?=a)b"}', "look-around"),
        ("json_schema", '{"$ref":"#/nope"}', "/nope"),
        ("json_schema", '{"type":"object","not":{"type":"string"}}', '"not"'),
        ("json_schema", '{"type":"array","uniqueItems":true,"x-guidance":{"lenient":true}}', "uniqueItems"),
        ("json_schema", "[1]", "object"),
        ("json_schema", "{", ""),
        ("json_schema", '{"enum":[]}', "nsatisfiable"),
        ("json_schema", "false", "nothing can fulfil it"),
        ("json_schema", '{"title":"\ud800"}', "not JSON"),
        ("json_schema", "[" * 10_000, ""),
        ("regex", "(", "unclosed group"),
        ("regex", "[^\\x00-\\u{10ffff}]", "nothing can fulfil it"),
        ("lark", "start: nope", "nope"),
        ("lark", "  ", "empty"),
        ("lark", 'root ::= ("a"', "Expected ')'"),
        ("lark", "root ::= " + "(" * 5000, ""),
        ("lark", 'start: "a" <|im_end|>', ""),
        ("choice", "[]", "at least one"),
        ("choice", '["a",1]', "at least one"),
        ("choice", "nothing", ""),
        ("xml", "", "xml"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_reason(kind: str, text: str, named: str) -> None:
    """Report 64: a schema that could not be compiled gave free text with status 200."""
    with pytest.raises(InvalidField) as raised:
        compile_guide(CARD, Constraint(kind, text), param="field")
    assert named in raised.value.message
    assert raised.value.param == "field"
    assert "state>" not in raised.value.message and "\n" not in raised.value.message


def test_only_tokens_of_the_grammar_may_come_and_then_only_the_end() -> None:
    person = guide("json_schema", PERSON)
    assert may(person) == {ord("{"), QUOTED}
    said(person, b'{"name": "x", "age": 3')
    assert may(person) >= {*b" 0123456789}"} and END not in may(person)
    assert not person.complete
    said(person, b"}")
    assert person.complete and person.error is None


def test_any_object_is_what_the_empty_schema_means() -> None:
    assert may(guide("json_schema", "{}")) == {ord("{"), QUOTED}


def test_an_end_is_allowed_as_soon_as_the_grammar_is_fulfilled_and_control_tokens_never() -> None:
    word = said(guide("regex", "ab*"), b"a")
    assert may(word) == {ord("b"), END, OTHER_END}
    word.advance(OTHER_END)
    assert word.error is None
    string = said(guide("json_schema", '{"type":"string"}'), b'"')
    assert not may(string) & {CONTROL, THINK, UNTHINK, END}
    assert may(guide("lark", f'start: "a" | <[{CONTROL}]>')) == {ord("a")}


@pytest.mark.parametrize("ends", [frozenset[int](), frozenset({9999})])
def test_a_model_without_an_end_token_completes(ends: frozenset[int]) -> None:
    word = guide("choice", '["yes"]', on=card(ends=ends))
    assert said(word, b"yes").complete
    assert word.error is None


@pytest.mark.parametrize("choices", [["yes", "no"], ["", "a"], ['q"\n\\x', "é😀", "\x00\x7f"], ["a.b|c", "/{}$"]])
def test_each_choice_and_no_other_text(choices: list[str]) -> None:
    for choice in choices:
        follow = said(guide("choice", json.dumps(choices)), choice.encode())
        assert follow.error is None
        assert follow.complete or END in may(follow)
    assert said(guide("choice", json.dumps(choices)), b"other").error


def test_llama_cpps_grammars_are_read_too() -> None:
    assert may(guide("lark", 'root ::= "yes" | "no"')) == {ord("y"), ord("n")}
    assert may(guide("lark", 'start: "::=" | "no"')) == {ord(":"), ord("n")}


def test_white_space_between_the_tokens_of_json_is_bounded() -> None:
    """Report 65: a small model padded its answer with line breaks up to the limit."""
    padded = said(guide("json_schema", PERSON), b"{")
    added = 0
    while added < 100 and (spaces := may(padded) & {*b" \n\r\t"}):
        padded.advance(spaces.pop())
        added += 1
    assert added < 50


@pytest.mark.parametrize("text", [b"x", b'{"age"', b'{"name": "x", "age": 3}}', [END], [CONTROL], [4711], [THINK]])
def test_a_token_outside_the_grammar_is_an_error_that_stays(text: bytes | list[int]) -> None:
    follow = said(guide("json_schema", PERSON), text)
    assert follow.error and not follow.complete
    assert follow.allowed() is None
    assert said(follow, b"{").error


def test_an_opened_thought_is_free_but_cannot_end_the_reply() -> None:
    follow = guide("choice", '["yes"]', after="</think>")
    assert may(said(follow, b"anything { ")) == set(range(256 + len(WORDS))) - {END, OTHER_END}
    assert may(said(follow, [UNTHINK])) == {ord("y"), *b"\r\n"}
    assert may(said(follow, b"\n\n")) == {ord("y")}
    assert said(follow, b"yes").complete
    assert said(guide("choice", '["yes"]', after="</think>"), [*b"hm", END]).error


def test_a_thought_may_come_first_or_not() -> None:
    first = guide("json_schema", PERSON, "<think>", "</think>")
    assert may(first) == {ord("{"), QUOTED, THINK, ord("<")}
    assert may(said(first, b"<th")) == {ord("i")}
    assert may(said(first, b"ink>{no")) == set(range(256 + len(WORDS))) - {END, OTHER_END}
    answered = said(guide("json_schema", PERSON, "<think>", "</think>"), b'{"name"')
    assert may(answered) == {*b": \t\r\n"}
    assert said(guide("json_schema", PERSON, "<think>", "</think>"), b"<thing").error
    both = guide("regex", "<t+>", "<think>", "</think>")
    assert may(said(both, b"<t")) == {*b"th>"}
    assert said(both, b"t>").complete


MIXED = card(b"k></", b"think>", b">\n\n", b'\n{"na', b'nk>{"name": "')


@given(st.randoms(use_true_random=False))
def test_a_marker_counts_however_tokens_split_it(chance: random.Random) -> None:
    """The text after the marker is the grammar's even where one token holds both."""
    text = b'<think>so {</think>\n\n{"name": "Ada", "age": 36}'
    tokens: list[int] = []
    left, vocabulary = text, MIXED.tokenizer
    while left:
        fits = [
            n
            for n in range(vocabulary.vocabulary_size)
            if vocabulary.token_bytes(n) and left.startswith(vocabulary.token_bytes(n))
        ]
        tokens.append(chance.choice(fits))
        left = left[len(vocabulary.token_bytes(tokens[-1])) :]
    follow = guide("json_schema", PERSON, "<think>", "</think>", on=MIXED)
    for token in tokens:
        mask = follow.allowed()
        follow.advance(token)
        assert follow.error is None
        assert (
            mask is None or mask[token] or MIXED.tokenizer.token_bytes(token) in (b">\n\n", b'\n{"na', b'nk>{"name": "')
        )
    assert follow.complete


def test_a_row_that_starts_over_is_where_it_was() -> None:
    compiled = compile_guide(CARD, Constraint("json_schema", PERSON))
    assert may(RowGuide(compiled, said=list(b'{"name": "A", "age":'))) == may(
        said(RowGuide(compiled), b'{"name": "A", "age":')
    )


def test_no_end_before_min_tokens_unless_nothing_else_is_left() -> None:
    compiled = compile_guide(CARD, Constraint("regex", "ab{0,2}"))
    follow = said(RowGuide(compiled, min_tokens=9), b"a")
    assert may(follow) == {ord("b")}
    assert said(follow, b"bb").complete


def test_a_grammar_is_compiled_once_and_the_oldest_are_forgotten() -> None:
    own = card()
    first = compile_guide(own, Constraint("regex", "a"))._first
    assert compile_guide(own, Constraint("regex", "a", "</think>"))._first is first
    for number in range(KEPT_GRAMMARS):
        compile_guide(own, Constraint("regex", f"b{number}"))
    assert compile_guide(own, Constraint("regex", "a"))._first is not first


def test_grammars_that_were_dear_to_compile_are_kept_few_at_a_time() -> None:
    """`a{1000000}` holds 80 MB; one request after another, each with another such, filled the memory."""
    shelf = Shelf(card())
    for number in range(10):
        shelf.keep(("regex", f"a{number}"), object(), 0.4 * KEPT_COMPILE_S)
    assert len(shelf) == 2
    shelf.keep(("regex", "dearest"), last := object(), 5 * KEPT_COMPILE_S)
    assert len(shelf) == 1 and shelf.find(("regex", "dearest")) is last
    for number in range(10):
        shelf.keep(("regex", f"b{number}"), object(), 0.01 * KEPT_COMPILE_S)
    assert len(shelf) == 10
