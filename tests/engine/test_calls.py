"""Calls of tools in a reply's text: what is a call, what stays content, whatever way the text comes.

Thread: any
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_cli.engine.call_stage import CallFragment
from lattice_cli.engine.calls import call_parser, knows
from lattice_cli.engine.row import Row
from lattice_cli.errors import UnsupportedField
from lattice_cli.events import CallPart, Piece
from lattice_cli.job import Channel, Job, Limits, Prompt, Sampling, Tool, ToolSpeech
from tests.engine.letters import LETTERS, ids
from tests.samples import examples

pytestmark = pytest.mark.pure

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "text": {"type": "string"},
        "t": {"type": "number"},
        "n": {"type": "integer"},
        "b": {"type": "boolean"},
        "s": {"type": ["string", "null"]},
        "u": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "o": {"type": "object"},
        "l": {"type": "array"},
        "e": {"enum": ["x", 1]},
        "c": {"const": 7},
        "any": {},
        "r": {"$ref": "#/$defs/D"},
        "loop": {"$ref": "#/properties/loop"},
        "opt": {"type": "integer", "nullable": True},
    },
    "$defs": {"D": {"type": "integer"}},
}
TOOLS = (Tool("f", "", json.dumps(SCHEMA)), Tool("g"))
DIALECTS = ("json", "qwen3_coder", "mistral", "llama3_json")


def read(dialect: str, pieces: Iterable[str]) -> tuple[str, list[tuple[str, str]]]:
    """(content, [(name, arguments)]). Names come first, indices in order."""
    parser = call_parser(ToolSpeech(dialect, TOOLS))
    parts = [part for piece in pieces for part in parser.push(piece)] + list(parser.flush())
    content, calls = "", [("", "")][:0]
    for part in parts:
        if isinstance(part, str):
            assert part
            content += part
        elif part.name is not None:
            assert part.index == len(calls)
            calls.append((part.name, part.arguments))
        else:
            assert part.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + part.arguments)
    return content, calls


def said(dialect: str, text: str) -> tuple[str, list[tuple[str, str]]]:
    """`read`, after every split of the text in two gave the same (user report 31)."""
    whole = read(dialect, [text])
    assert read(dialect, text) == whole
    for at in range(len(text)):
        assert read(dialect, [text[:at], text[at:]]) == whole, at
    return whole


def hermes(name: str = "f", arguments: str = '{"city": "Oslo"}') -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def coder(name: str = "f", *, wrapped: bool = True, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    block = f"<function={name}>\n{parameters}</function>"
    return f"<tool_call>\n{block}\n</tool_call>" if wrapped else block


CALL = {
    "json": hermes(),
    "qwen3_coder": coder(city="Oslo"),
    "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {"city": "Oslo"}}]',
    "llama3_json": '{"name": "f", "parameters": {"city": "Oslo"}}',
}
OSLO = ("f", '{"city": "Oslo"}')


# All dialects.


@pytest.mark.parametrize("dialect", DIALECTS)
def test_one_call(dialect: str) -> None:
    """User report 30: no markup, no empty content."""
    assert said(dialect, CALL[dialect]) == ("", [OSLO])
    assert said(dialect, f"\n\n{CALL[dialect]}\n") == ("", [OSLO])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_name_comes_before_the_arguments_and_they_come_as_they_are_said(dialect: str) -> None:
    """User report 22."""
    text = CALL[dialect].replace("Oslo", "a long story of many words")
    parser = call_parser(ToolSpeech(dialect, TOOLS))
    until = text.index("story")
    parts = [part for letter in text[:until] for part in parser.push(letter)]
    assert parts[0] == CallFragment(0, "f", "")
    assert "".join(part.arguments for part in parts if isinstance(part, CallFragment)) == '{"city": "a long '


@pytest.mark.parametrize("dialect", ["json", "qwen3_coder"])
def test_several_calls_have_indices_in_order(dialect: str) -> None:
    """User reports 31, 32, 33."""
    other = CALL[dialect].replace("Oslo", "Rome")
    assert said(dialect, f"{CALL[dialect]}\n{other}") == ("", [OSLO, ("f", '{"city": "Rome"}')])
    assert said(dialect, CALL[dialect] + other + other)[1][2] == ("f", '{"city": "Rome"}')


@pytest.mark.parametrize("dialect", ["json", "qwen3_coder", "mistral"])
def test_text_round_a_call_is_content(dialect: str) -> None:
    """User report 41."""
    assert said(dialect, f"Before {CALL[dialect]} After") == (
        "Before " + ("" if dialect == "mistral" else " ") + "After",
        [OSLO],
    )
    assert said(dialect, f"{CALL[dialect]}\n\nAfter")[0] == "After"
    assert said(dialect, f"One\n{CALL[dialect]}\n") == ("One\n", [OSLO])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "text",
    [
        "", " ", "Hello", "a\n\nb\n", "write <tool_call> and [TOOL_CALLS] to call", "<tool_call>", " \n<tool_call> x ",
        "<function=", "<function=f> takes", "<tool_call>\n<function=f>\n{}", '{"a": 1}', '{"name": 1}', "[1, 2]",
        '<tool_call>{"foo": 1}</tool_call>', '<tool_call>{"name": "f"', '{"name": "f", "param', "{",
        '[{"name": "apple", "arguments": "none"}, {"name": "pear", "arguments": "none"}]', "<tool_call></tool_call>",
        '[TOOL_CALLS] [{"x": 1}]', "[TOOL_CALLS]", "[TOOL_CALLS]f",
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
    ],
)  # fmt: skip
def test_prose_comes_back_letter_by_letter(dialect: str, text: str) -> None:
    """User report 43, and prose that mentions a marker."""
    assert said(dialect, text) == (text, [])


pieces = st.lists(
    st.sampled_from([
        *CALL.values(), "<tool_call>", "</tool_call>", "<function=f>", "<function=", "</function>", "<parameter=city>",
        "<parameter=", "</parameter>", "[TOOL_CALLS]", "[ARGS]", "f", '{"name": "f", "arguments": ', "{", "}", "[", "]",
        '"', "'", "\\", "\\u12", ":", ",", "null", "True", "1", "\n", " ", "a", "é🙂", "\x00", "</", "<", '"k": ',
    ]),
    max_size=14,
)  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS)
@given(parts=pieces, cuts=st.lists(st.integers(0, 200), max_size=6))
@examples(150, sample=40)
def test_no_text_breaks_a_parser_and_no_split_changes_what_it_says(
    dialect: str, parts: list[str], cuts: list[int]
) -> None:
    text = "".join(parts)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    split = [text[start:end] for start, end in pairwise(places)]
    whole = read(dialect, [text])
    assert read(dialect, split) == read(dialect, text) == whole
    if not whole[1]:
        assert whole[0] == text  # nothing is lost


# Arguments that are JSON.

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("dialect", ["json", "mistral", "llama3_json"])
@given(st.dictionaries(st.text(max_size=5), values, max_size=4), st.sampled_from([None, 1]), st.booleans())
@examples(60, sample=20)
def test_any_arguments_come_out_as_they_went_in(
    dialect: str, arguments: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    told = json.dumps(arguments, indent=indent, ensure_ascii=ascii_only)
    content, calls = read(dialect, CALL[dialect].replace('{"city": "Oslo"}', told))
    assert content == "" and len(calls) == 1
    assert calls[0][1] == told


@pytest.mark.parametrize(
    ("wrote", "means"),
    [
        (r'{"pattern": "\d+"}', {"pattern": r"\d+"}),
        ("{'k': 'v', \"q\": 'it\\'s \"so\"'}", {"k": "v", "q": 'it\'s "so"'}),
        ('{"a": True, "b": False, "c": None, "d": [1, 2,], }', {"a": True, "b": False, "c": None, "d": [1, 2]}),
        ('{"a": "two\nlines\t"}', {"a": "two\nlines\t"}),
        (r'{"a": "\u00e9 \u12"}', {"a": r"é \u12"}),
        ('{"a": "</tool_call>"}', {"a": "</tool_call>"}),
    ],
)
def test_slips_with_one_reading_are_mended(wrote: str, means: dict[str, Any]) -> None:
    """User reports 37, 38."""
    content, calls = said("json", hermes(arguments=wrote))
    assert (content, [name for name, _ in calls]) == ("", ["f"])
    assert json.loads(calls[0][1]) == means


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a": {"b": [1</tool_call>', {"a": {"b": [1]}}),
        ('<tool_call>{"name": "f", "arguments": {"a":</tool_call>', {"a": None}),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', {"a": 1}),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call>', {"a": 1}),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}, "id": "x"}</tool_call>', {"a": 1}),
        ('<tool_call>{"arguments": {"a": "</tool_call>"}, "name": "f"}</tool_call>', {"a": "</tool_call>"}),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 2}"}</tool_call>', {"a": 2}),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', {}),
        ('<tool_call>{"name": "f"}</tool_call>', {}),
        ('<tool_call>{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}</tool_call>', {"a": 1}),
        ('<tool_call>{"name": "f", "parameters": {"a": 1}}', {"a": 1}),
    ],
)
def test_other_ways_to_write_a_call_are_read(text: str, arguments: dict[str, Any]) -> None:
    content, calls = said("json", text)
    assert content == ""
    assert [(name, json.loads(told)) for name, told in calls] == [("f", arguments)]


def test_what_has_no_reading_is_passed_on_as_the_model_wrote_it() -> None:
    assert said("json", hermes(arguments='{"a": oops}')) == ("", [("f", '{"a": oops}}\n')])


@pytest.mark.parametrize("dialect", ["json", "qwen3_coder"])
def test_a_call_that_is_cut_stays_cut(dialect: str) -> None:
    """Closed by us, a client might act on half of what was meant."""
    text = CALL[dialect]
    content, calls = said(dialect, text[: text.index("Oslo") + 2])
    assert (content, calls) == ("", [("f", '{"city": "Os')])


TWO_CALLS = {
    "json": f"{hermes()}\n{hermes()}",
    "qwen3_coder": f"{coder('f', city='Oslo')}\n{coder('f', city='Oslo')}",
    "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"a": 1}}]',
    "llama3_json": '{"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {"a": 1}}',
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_limit_behind_a_call_leaves_no_piece_of_a_marker(dialect: str) -> None:
    """Report 30: no markup comes as content. A limit fell into `</tool_call>`, and the answer was `</tool`."""
    text = TWO_CALLS[dialect]
    for end in range(1, len(text) + 1):
        content, calls = read(dialect, [text[:end]])
        assert not calls or content == "", f"cut at {end}"
        if dialect != "llama3_json":  # a call there is the whole reply
            content, calls = read(dialect, ["Let me see. ", text[:end]])
            assert not calls or content.strip() == "Let me see.", f"cut at {end}"
    assert read(dialect, [text])[1][0][0] == "f"


def test_a_call_with_markers_may_name_what_was_not_offered_and_one_without_may_not() -> None:
    assert said("json", hermes("other")) == ("", [("other", '{"city": "Oslo"}')])
    assert said("qwen3_coder", coder("other", city="Oslo")) == ("", [("other", '{"city": "Oslo"}')])
    bare = coder("other", wrapped=False, city="Oslo")
    assert said("qwen3_coder", bare) == (bare, [])
    assert said("llama3_json", '{"name": "other", "parameters": {}}') == ('{"name": "other", "parameters": {}}', [])


def test_mistrals_newer_way() -> None:
    assert said("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}') == ("", [("f", '{"a": 1}'), ("g", "{}")])
    assert said("mistral", '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}') == ("", [("f", '{"a": 1}')])
    listed = '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abcdefghi"}, {"name": "g", "arguments": {}}]'
    assert said("mistral", listed) == ("", [("f", "{}"), ("g", "{}")])


def test_llamas_calls_begin_a_reply_or_are_prose() -> None:
    two = '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}'
    assert said("llama3_json", two) == ("", [("f", '{"a": 1}'), ("g", "{}")])
    assert said("llama3_json", f"Use {two}") == (f"Use {two}", [])


# Parameters one by one.


@pytest.mark.parametrize(
    ("key", "wrote", "means"),
    [
        ("t", "30", 30), ("t", "1.50", 1.5), ("t", "1e3", 1000.0), ("t", "+2", 2), ("t", "nan", "nan"),
        ("n", "30", 30), ("n", "30.0", 30), ("n", "2026-01-15", "2026-01-15"), ("n", "1.5", "1.5"),
        ("n", "null", None), ("n", "007", 7), ("b", "True", True), ("b", "false", False), ("b", "yes", "yes"),
        ("city", "null", "null"), ("city", "30", "30"), ("s", "null", None), ("s", "None", None),
        ("s", "nullify", "nullify"), ("s", "", ""), ("u", "4", 4), ("u", "4a", "4a"),
        ("o", '{"k": [1]}', {"k": [1]}), ("o", "{'k': 'v', 't': True}", {"k": "v", "t": True}), ("o", "[1]", "[1]"),
        ("o", '{"k": NaN}', '{"k": NaN}'), ("o", "{'k': '\\d'}", {"k": "\\d"}), ("l", "[1, 'a']", [1, "a"]),
        ("l", "(1, 2)", [1, 2]), ("l", "a, b", "a, b"), ("e", "x", "x"), ("e", "1", 1), ("c", "7", 7),
        ("any", '{"a": 1}', {"a": 1}), ("any", "1", "1"), ("r", "5", 5), ("loop", "5", "5"), ("opt", "null", None),
        ("opt", "3", 3), ("unheard", "5", "5"), ("o", "[" * 5000, "[" * 5000), ("n", "9" * 5000, None),
        ("city", "a\n", "a\n"), ("city", "\n\n", "\n\n"), ("city", 'q"\\\u2028', 'q"\\\u2028'),
    ],
)  # fmt: skip
def test_values_are_typed_by_the_schema_and_stay_texts_where_they_do_not_fit(key: str, wrote: str, means: Any) -> None:
    """User reports 36, 37."""
    text = coder(**{key: wrote})
    content, calls = said("qwen3_coder", text) if len(text) < 500 else read("qwen3_coder", [text])
    assert content == "" and len(calls) == 1
    if len(wrote) == 5000 and key == "n":  # a whole number of any length is one, though Python would not read it
        assert calls[0][1] == '{"n": ' + wrote + "}"
    else:
        assert json.loads(calls[0][1]) == {key: means}
        assert type(json.loads(calls[0][1])[key]) is type(means)


@pytest.mark.parametrize(
    "value",
    [
        "see <parameter=x>…</parameter> and </function> ok\nmore",
        "</parameter>",
        "a</tool_call>b",
        "<tool_call>\n<function=f>\n</function> is how",
        "if a </para and </parameter then",
        "x\n</parameter>\nand on",
    ],
)
def test_a_value_may_hold_markers(value: str) -> None:
    """User report 38."""
    content, calls = said("qwen3_coder", coder(text=value, city="Oslo"))
    assert content == ""
    assert [json.loads(told) for _, told in calls] == [{"text": value, "city": "Oslo"}]


@given(st.dictionaries(st.sampled_from(["city", "text", "unheard"]), st.text(max_size=30), max_size=3))
@examples(100, sample=30)
def test_any_texts_come_out_as_they_went_in(values: dict[str, str]) -> None:
    content, calls = read("qwen3_coder", coder(**values))
    assert content == "" and json.loads(calls[0][1]) == values


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (coder("g"), [("g", "{}")]),
        (coder(wrapped=False, city="Oslo"), [OSLO]),
        (coder(city="Oslo").replace("\n</tool_call>", ""), [OSLO]),
        (coder(city="Oslo").replace("</parameter>\n", ""), [OSLO]),
        (coder(city="Oslo").replace("\n", ""), [OSLO]),
        (coder(city="Oslo").replace("<function=f>", '<function="f">'), [OSLO]),
        (coder(city="a", unheard="b"), [("f", '{"city": "a", "unheard": "b"}')]),
        (coder(city="Oslo").replace("\n</tool_call>", "\n") + coder(city="Oslo"), [OSLO, OSLO]),
    ],
)
def test_calls_with_markers_left_out_are_read(text: str, calls: list[tuple[str, str]]) -> None:
    """User report 40."""
    assert said("qwen3_coder", text) == ("", calls)


# Other people's parsers.


def test_dialects_that_nobody_reads_are_refused() -> None:
    for dialect in ("nobody", "../x", "__init__", ""):
        assert not knows(dialect)
        with pytest.raises(UnsupportedField):
            call_parser(ToolSpeech(dialect, TOOLS))


def test_our_own_dialects_import_no_mlx() -> None:
    assert all(map(knows, DIALECTS))
    assert "lattice_cli.engine.call_foreign" in sys.modules or "mlx_lm" not in sys.modules


# In a row.


def events_of(text: str, ended: bool, **limits: Any) -> list[Any]:
    prompt = Prompt((1,), "x")
    speech = ToolSpeech("json", TOOLS)
    row = Row(Job("1", prompt, Sampling(), Limits(**{"max_tokens": 500, **limits}), speech=speech), LETTERS)
    events = []
    for letter in ids(text) + [0] * ended:
        events += row.accept(letter, 0.0)
        if row.ended:
            break
    return events


def test_a_reply_with_a_call_ends_with_that_reason_and_one_that_is_cut_with_length() -> None:
    """User report 34."""
    events = events_of(f"<think>hm <tool_call> hm</think>{hermes()}", ended=True)
    calls = [event for event in events if isinstance(event, CallPart)]
    assert "".join(call.arguments for call in calls) == '{"city": "Oslo"}'
    assert [event.channel for event in events if isinstance(event, Piece)].count(Channel.ANSWER) == 0
    assert events[-1].reason == "tool_calls"
    assert events_of("no call", ended=True)[-1].reason == "stop"
    cut = events_of(hermes(), ended=True, max_tokens=60)
    assert cut[-1].reason == "length"
    assert next(event.name for event in cut if isinstance(event, CallPart)) == "f"


def test_stop_strings_do_not_look_into_calls() -> None:
    events = events_of(hermes() + "\nand Oslo", ended=True, stop=("Oslo",))
    assert "".join(event.arguments for event in events if isinstance(event, CallPart)) == '{"city": "Oslo"}'
    assert events[-1].stopped_by == "Oslo"
