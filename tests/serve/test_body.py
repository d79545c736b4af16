"""Bytes of a request: what is JSON to us and what is not.

Thread: any
"""

from __future__ import annotations

import pytest

from lattice_cli.errors import InvalidField
from lattice_cli.serve.wire.body import MAX_DEPTH, read_object

pytestmark = pytest.mark.pure

NESTED = b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}"

REFUSED = {
    "empty": (b"", "the request has no body", None),
    "spaces": (b" \r\n", "the request has no body", None),
    "gbk": ('{"a":"你好"}'.encode("gbk"), "the body is not UTF-8 (byte 6)", None),
    "utf-16": ('{"a":1}'.encode("utf-16"), "the body is not UTF-8 (byte 0)", None),
    "raw surrogate": (b'{"a":"\xed\xa0\x80"}', "the body is not UTF-8 (byte 6)", None),
    "cut off": (
        b"{",
        "the body is not JSON: expecting property name enclosed in double quotes at line 1 column 2",
        None,
    ),
    "array": (b"[]", "the body is not a JSON object", None),
    "string": (b'"hi"', "the body is not a JSON object", None),
    "null": (b"null", "the body is not a JSON object", None),
    "NaN": (b'{"a":NaN}', "the body is not JSON: NaN is not a number", None),
    "Infinity": (b'{"a":-Infinity}', "the body is not JSON: -Infinity is not a number", None),
    "1e999": (b'{"a":1e999}', "the body holds a number that is too large", None),
    "5000 digits": (b'{"a":' + b"1" * 5000 + b"}", "the body holds a number that is too large", None),
    "twice": (b'{"n":1,"b":{"n":2},"n":3}', 'the field "n" is given twice in one object', "n"),
    "twice inside": (b'{"b":{"x":1,"x":2}}', 'the field "x" is given twice in one object', "x"),
    "deep": (NESTED, "the body is nested deeper than 200 levels", None),
    "a little too deep": (
        b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
        "the body is nested deeper than 200 levels",
        None,
    ),
    "lone surrogate": (
        b'{"messages":[{"role":"user","content":"a\\ud800b"}]}',
        "`messages[0].content` holds half of a surrogate pair, which is no character",
        "messages[0].content",
    ),
    "lone low surrogate": (
        b'{"stop":["x","\\uDC00"]}',
        "`stop[1]` holds half of a surrogate pair, which is no character",
        "stop[1]",
    ),
    "surrogate in a name": (
        b'{"a\\ud800":1}',
        "the body holds half of a surrogate pair, which is no character",
        None,
    ),
    "control character": (
        b'{"a":"\x00"}',
        "the body is not JSON: invalid control character at line 1 column 7",
        None,
    ),
    "comment": (
        b'{"a":1} // b',
        "the body is not JSON: extra data at line 1 column 9",
        None,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_json_object_is_refused_with_its_place(name: str) -> None:
    """Reports 7 and 85: a body in another encoding, half a surrogate or endless brackets crashed servers."""
    body, message, param = REFUSED[name]
    with pytest.raises(InvalidField) as refused:
        read_object(body)
    assert (refused.value.message, refused.value.param) == (message, param)
    assert (refused.value.status, refused.value.code) == (400, "invalid_request_body")


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        (b'{"a":"x\\u0000y"}', {"a": "x\0y"}),
        (b'{"a":"\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"a":"😀\u2028"}'.encode(), {"a": "😀\u2028"}),
        (b'{"a":8.0,"b":8.5,"c":1e3}', {"a": 8, "b": 8.5, "c": 1000}),
        (b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}", None),
        (b'{"a":[' + b"{}," * 500 + b"{}]}", {"a": [{}] * 501}),
    ],
)
def test_what_is_legal_is_read(body: bytes, value: object) -> None:
    """Report 85: a byte order mark may be accepted, and a NUL in a text is a character."""
    read = read_object(body)
    assert value is None or read == value
