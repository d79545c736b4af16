"""JSON as serde_json reads it: what it takes, and its words and places for what it does not.

Thread: any
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from lattice_cli.serve.wire.serde.place import SerdeError
from lattice_cli.serve.wire.serde.reader import Reader
from lattice_cli.serve.wire.serde.rust import quoted, spelled_float, spelled_json
from lattice_cli.serve.wire.serde.shapes import Field, Shape, boolean, float32, option, record, several, text, whole
from lattice_cli.serve.wire.serde.skipping import skip
from tests.samples import examples

pytestmark = pytest.mark.pure

BAR = record("Bar", {"x": Field(whole("i32")), "y": Field(whole("i32"))})
FOO = record("Foo", {"a": Field(whole("i32")), "b": Field(several(BAR))})
PLAIN = record("Plain", {"s": option(text), "f": option(float32), "n": option(whole("usize")), "b": option(boolean)})


def read(shape: Shape, body: bytes) -> Any:
    reader = Reader(body)
    value = shape(reader)
    reader.end()
    return value


def any_value(reader: Reader) -> Any:
    return reader.anything()


def refusal(shape: Shape, body: bytes) -> tuple[str, bool]:
    with pytest.raises(SerdeError) as refused:
        read(shape, body)
    return refused.value.sentence(), refused.value.data


def takes(shape: Shape, body: bytes) -> bool:
    try:
        read(shape, body)
    except SerdeError:
        return False
    return True


SYNTAX = {
    b"": "EOF while parsing a value at line 1 column 0",
    b" \n ": "EOF while parsing a value at line 2 column 1",
    b"\xef\xbb\xbf1": "expected value at line 1 column 1",
    b"nul": "EOF while parsing a value at line 1 column 3",
    b"nil": "expected ident at line 1 column 2",
    b"NaN": "expected value at line 1 column 1",
    b"-Infinity": "invalid number at line 1 column 2",
    b"-": "EOF while parsing a value at line 1 column 1",
    b"--": "invalid number at line 1 column 2",
    b"01": "invalid number at line 1 column 2",
    b"1.": "EOF while parsing a value at line 1 column 2",
    b"1.x": "invalid number at line 1 column 3",
    b"1e": "EOF while parsing a value at line 1 column 2",
    b"1e+": "EOF while parsing a value at line 1 column 3",
    b"1ex": "invalid number at line 1 column 3",
    b"1e999": "number out of range at line 1 column 5",
    b"[": "[0]: EOF while parsing a list at line 1 column 1",
    b"[1 2": "[1]: expected `,` or `]` at line 1 column 4",
    b"[1,": "[1]: EOF while parsing a value at line 1 column 3",
    b"[1,]": "[1]: trailing comma at line 1 column 4",
    b"{": "EOF while parsing an object at line 1 column 1",
    b"{1": "key must be a string at line 1 column 2",
    b'{"a"': "a: EOF while parsing an object at line 1 column 4",
    b'{"a" 1': "a: expected `:` at line 1 column 6",
    b'{"a":1 "b"': "expected `,` or `}` at line 1 column 8",
    b'{"a":1,}': "trailing comma at line 1 column 8",
    b'{"a":{"b":[0,x': "a.b[1]: expected value at line 1 column 14",
    b"1 x": "trailing characters at line 1 column 3",
    b'"ab': "EOF while parsing a string at line 1 column 3",
    b'"a\nb"': "control character (\\u0000-\\u001F) found while parsing a string at line 2 column 0",
    b'"\\x"': "invalid escape at line 1 column 3",
    b'"\\u12g4"': "invalid escape at line 1 column 7",
    b'"\\u12': "EOF while parsing a string at line 1 column 5",
    b'"\\udc00"': "lone leading surrogate in hex escape at line 1 column 7",
    b'"\\ud800"': "unexpected end of hex escape at line 1 column 8",
    b'"\\ud800\\n"': "unexpected end of hex escape at line 1 column 9",
    b'"\\ud800\\u0041"': "lone leading surrogate in hex escape at line 1 column 13",
    b'"\xff"': "invalid unicode code point at line 1 column 3",
    b"[" * 128 + b"]" * 128: f"{'[0]' * 127}: recursion limit exceeded at line 1 column 128",
}


@pytest.mark.parametrize("body", SYNTAX, ids=repr)
def test_what_is_no_json_is_told_with_its_place(body: bytes) -> None:
    assert refusal(any_value, body) == (SYNTAX[body], False)


DATA = {
    b"[1]": "invalid length 1, expected struct Foo with 2 elements at line 1 column 3",
    b"7": "invalid type: integer `7`, expected struct Foo at line 1 column 1",
    b"{}": "missing field `a` at line 1 column 2",
    b'{"a": 1, "b": [{"x": 2}]}': "b[0]: missing field `y` at line 1 column 23",  # axum's own example
    b'{"a":1,\n"a":2}': "duplicate field `a` at line 2 column 3",
    b'{"a":-1}': "a: invalid value: integer `-1`, expected i32 at line 1 column 7",
    b'{"a":1.0}': "a: invalid type: floating point `1.0`, expected i32 at line 1 column 8",
    b'{"a":-0}': "a: invalid type: floating point `-0.0`, expected i32 at line 1 column 7",
    b'{"a":18446744073709551616}': (
        "a: invalid type: floating point `1.8446744073709552e19`, expected i32 at line 1 column 25"
    ),
    b'{"a":null}': "a: invalid type: null, expected i32 at line 1 column 9",
    b'{"a":"x\\n"}': 'a: invalid type: string "x\\n", expected i32 at line 1 column 10',
    b'{"b":true}': "b: invalid type: boolean `true`, expected a sequence at line 1 column 9",
    b'{"b":{}}': "b: invalid type: map, expected a sequence at line 1 column 5",
    b'{"b":[[1,2],[1,2,3]]}': "b[1]: trailing characters at line 1 column 18",
}


@pytest.mark.parametrize("body", DATA, ids=repr)
def test_what_is_of_another_shape_is_told_with_its_place(body: bytes) -> None:
    assert refusal(FOO, body) == (DATA[body], b"1,2,3" not in body)


def test_fields_may_be_null_or_absent_or_listed() -> None:
    nothing = {"s": None, "f": None, "n": None, "b": None}
    assert read(PLAIN, b"{}") == read(PLAIN, b"[]") == nothing
    assert read(PLAIN, b' {"s":null,"x":[{"deep":[]}],"x":2} ') == nothing
    assert read(PLAIN, b'["t",1]') == {"s": "t", "f": 1.0, "n": None, "b": None}
    assert read(PLAIN, b'{"n":18446744073709551615,"b":false,"s":"\\ud83d\\ude00/\\/"}') == {
        "s": "😀//", "f": None, "n": 2**64 - 1, "b": False,
    }  # fmt: skip


def test_unknown_fields_are_passed_at_any_depth_and_with_any_bytes() -> None:
    """Where nothing is built nothing need be sound but the form."""
    deep = b"[" * 20_000 + b"]" * 20_000
    assert takes(PLAIN, b'{"x":%b,"y":"\xff\\ud800","z":1e999}' % deep)
    assert not takes(PLAIN, b'{"x":%b}' % deep[:-1])


Json = some.recursive(
    some.none() | some.booleans() | some.integers(-(2**63), 2**64 - 1) | some.text()
    | some.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
)  # fmt: skip


@examples(100, sample=30)
@given(Json, some.sampled_from([None, 1]))
def test_every_value_is_read_as_it_was_written(value: Any, indent: int | None) -> None:
    for ascii_only in (True, False):
        body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
        assert read(any_value, body) == value
        assert takes(skip, body)


def ours_and_pythons(body: bytes) -> tuple[bool, bool]:
    def constant(name: str) -> None:
        raise ValueError(name)

    try:
        value = json.loads(body.decode(), parse_constant=constant)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return takes(any_value, body), False
    return takes(any_value, body), True


@given(some.lists(some.sampled_from('[]{}",:0123eE+-.\\u ntfals\n\x01\xff'), max_size=4), some.integers(0, 60))
@example(["1", "e", "3", "2"], 8)
def test_damage_is_found_where_pythons_parser_finds_it(noise: list[str], at: int) -> None:
    sound = b'{"a":[1,2.5e3,"x\\n\\u00e9",{"b":null,"c":true}],"d":-0.5}'
    damage = "".join(noise).encode("latin-1")
    for body in (sound[:at] + damage + sound[at:], sound[:at] + damage + sound[at + len(damage) :], sound[:at]):
        ours, pythons = ours_and_pythons(body)
        assert ours == pythons
        assert takes(skip, body) or not ours


FLOATS = {
    0.0: "0.0", 1.0: "1.0", 0.1: "0.1", 123456.75: "123456.75", 1e15: "1000000000000000.0",
    1e16: "1e16", 1.5e16: "1.5e16", 1e-5: "0.00001", 1.234e-6: "1.234e-6", -1e300: "-1e300", 5e-324: "5e-324",
}  # fmt: skip


def test_floats_and_strings_are_printed_as_rust_prints_them() -> None:
    assert {value: spelled_float(value) for value in FLOATS} == FLOATS
    assert spelled_float(-0.0) == "-0.0"
    assert quoted('a"\\\n\0é\u200b') == '"a\\"\\\\\\n\\0é\\u{200b}"'
    assert spelled_json({"b": [1, 1.0, None], "a": 'é"\u2028'}) == '{"a":"é\\"\u2028","b":[1,1.0,null]}'
