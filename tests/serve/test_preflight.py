"""lattice_serve 0.6.1's look over the raw bytes: counts and sizes, before anything else is said.

Thread: any
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice_cli.errors import BadRequest
from lattice_cli.serve.wire.lattice_061 import ChatDialect
from lattice_cli.serve.wire.preflight import check_parts

pytestmark = pytest.mark.pure

MOST = "x" * 65_536
OVER = MOST + "x"


def found(body: bytes) -> str | None:
    try:
        check_parts(body)
    except BadRequest as refused:
        return refused.message
    return None


def test_it_has_a_code_of_its_own() -> None:
    with pytest.raises(BadRequest) as refused:
        check_parts(request(OVER))
    assert (refused.value.status, refused.value.code) == (400, "content_part_limit_exceeded")


def request(*contents: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content} for content in contents]}).encode()


def parts(count: int) -> list[dict[str, str]]:
    return [{"type": "text", "text": f"p{index}"} for index in range(count)]


def too_large(message: int, part: int) -> str:
    return f"messages[{message}].content[{part}] exceeds 65536 bytes"


def too_many(message: int) -> str:
    return f"messages[{message}].content has too many parts; maximum is 64"


def test_sixty_four_parts_are_the_most() -> None:
    """parse_chat_req_accepts_max_parts_boundary, parse_chat_req_rejects_too_many_parts_before_typed_parse"""
    assert found(request(parts(64))) is None
    assert len(ChatDialect().parse(request(parts(64))).turns) == 1
    assert found(request(parts(65))) == too_many(0)
    assert found(request("hi", parts(64), parts(65))) == too_many(2)


def test_65536_bytes_are_the_most_of_a_text() -> None:
    """parse_chat_req_rejects_oversized_text_part_before_typed_parse"""
    assert found(request(MOST, [{"type": "text", "text": MOST}])) is None
    assert found(request(OVER)) == too_large(0, 0)
    assert found(request("hi", [*parts(3), {"type": "text", "text": OVER}])) == too_large(1, 3)
    assert found(request([{"type": "image_url", "image_url": {"detail": OVER, "url": OVER}}])) == too_large(0, 0)


def test_bytes_count_as_utf8_whatever_way_they_are_written() -> None:
    half = "é" * 32_768
    assert json.dumps(half).encode() != json.dumps(half, ensure_ascii=False).encode()
    for body in (f'"{half}"', json.dumps(half), json.dumps("\n" * 65_536)):
        assert found(b'{"messages":[{"content":%b}]}' % body.encode()) is None
        assert found(b'{"messages":[{"content":%b}]}' % (body[:-1] + 'x"').encode()) == too_large(0, 0)


def test_what_is_not_read_as_content_has_no_limit() -> None:
    long = [{"type": "file", "data": OVER, "text": None, "image_url": None}]
    assert found(json.dumps({"x": OVER, "messages": [{"role": OVER, "name": OVER, "content": long}]}).encode()) is None
    assert found(request([{"type": "image_url", "image_url": {"url": "u", "detail": OVER}}])) is None


def test_the_last_one_found_is_told() -> None:
    assert found(request(OVER, "hi", OVER)) == too_large(2, 0)
    assert found(request(OVER, parts(65), OVER)) == too_many(1)


def test_it_is_told_before_anything_that_is_wrong_behind_it() -> None:
    before = request(OVER)
    assert found(before[:-2]) == found(before + b" x") == too_large(0, 0)
    assert found(b'{"messages":[{"content":"%b"},5' % OVER.encode()) == too_large(0, 0)
    assert found(b'{"messages":[{"content":"%b"}],"messages":5}' % OVER.encode()) == too_large(0, 0)


@pytest.mark.parametrize(
    "before",
    [
        '{"messages":[{"content":null},', '{"messages":[{"content":5},', '{"messages":[{"content":{}},',
        '{"messages":["hi",', '{"messages":[{"content":["hi"]},', '{"messages":[{"content":[{"text":5}]},',
        '{"messages":[{"content":[{"image_url":"u"}]},', '{"n\\u0061me":1,"messages":[', '{"a":nul,"messages":[',
        '[{"messages":[',
    ],
)  # fmt: skip
def test_it_stops_at_what_is_no_chat_request(before: str) -> None:
    """The reading proper tells of that; an escape in a name is 0.6.1's own blind spot."""
    assert found(f'{before}{{"content":"{OVER}"}}]}}'.encode()) is None
