"""Frames as bytes, and the end of a stream that nobody reads to its end.

Thread: any
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from lattice_cli.serve.sse import EventStream, encode
from lattice_cli.serve.wire import Frame

pytestmark = pytest.mark.pure


def test_a_frame_is_one_data_line_with_its_name_before_it() -> None:
    assert encode([Frame(b"{}"), Frame(b"1", "ping")]) == b"data: {}\n\nevent: ping\ndata: 1\n\n"
    assert encode([]) == b""


def parts(heard: list[str]) -> Generator[bytes, None, None]:
    try:
        yield b"a"
        yield b"b"
    finally:
        heard.append("parts")


@pytest.mark.parametrize("read", [0, 1, 2, 3])
def test_a_stream_tells_its_end_once_however_far_it_was_read(read: int) -> None:
    """Report 21: a generator that was never begun runs no `finally`, and its engine slot leaked."""
    heard: list[str] = []
    stream = EventStream(parts(heard), lambda: heard.append("over"))
    for _ in range(read):
        next(stream, None)
    stream.close()
    stream.close()
    assert heard == (["parts", "over"] if read else ["over"])
