"""The `@@lattice` lines: whole, at once, and never in the way.

Thread: any
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from lattice_cli.serve.lines import AppLines

pytestmark = pytest.mark.pure


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_line_is_compact_ascii_json(pipe: tuple[int, int]) -> None:
    AppLines(pipe[1]).ready(11435)
    AppLines(pipe[1]).say({"route": "/é\n", "tokens": None})
    assert os.read(pipe[0], 1000) == (
        b'@@lattice {"ev":"ready","port":11435}\n@@lattice {"route":"/\\u00e9\\n","tokens":null}\n'
    )


def test_lines_of_many_threads_do_not_mix(pipe: tuple[int, int]) -> None:
    lines = AppLines(pipe[1])
    threads = [threading.Thread(target=lambda: [lines.say({"text": "x" * 100}) for _ in range(20)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert os.read(pipe[0], 1 << 16) == b'@@lattice {"text":"%b"}\n' % (b"x" * 100) * 160


def test_a_closed_pipe_ends_the_lines_and_nothing_else() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    lines = AppLines(write_end)
    lines.ready(1)
    lines.ready(1)
    os.close(write_end)


def test_a_full_pipe_loses_lines_and_blocks_nobody(pipe: tuple[int, int]) -> None:
    """A program that starts us and never reads must not stop requests after some hundred lines."""
    lines = AppLines(pipe[1])
    for _ in range(2000):
        lines.say({"text": "x" * 100})
    full = os.read(pipe[0], 1 << 20)
    assert len(full) < 2000 * 120
    assert full.endswith(b'"}\n')
    lines.ready(1)
    assert os.read(pipe[0], 100) == b'@@lattice {"ev":"ready","port":1}\n'


def test_without_stdout_there_are_no_lines() -> None:
    AppLines(-1).ready(1)
