"""A server with known delays, in real time over a socket: prefill 300 ms, 20 ms a token, however its bytes come.

The delays are kept by the wall clock, so that a slow sleep does not add up; an idle machine is within 3%.

Thread: any
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from lattice_cli.bench.load import Question, ask, read_target
from lattice_cli.bench.reading import Answer
from tests.bench.stub import Reply, serving
from tests.bench.test_reading import Timed, cut, kept_alive, known, merged

pytestmark = [pytest.mark.wire, pytest.mark.slow]

TOKENS = 151


def paced(packets: Iterable[Timed]) -> Reply:
    def reply(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        due_s = time.monotonic()
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.end_headers()
        for silence_s, data in packets:
            due_s += silence_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            handler.wfile.write(data)

    return reply


@pytest.mark.parametrize(
    "packets",
    [
        pytest.param(known(TOKENS), id="a chunk a packet"),
        pytest.param(list(cut(known(TOKENS), 17)), id="odd packets"),
        pytest.param(list(merged(known(TOKENS), 5)), id="merged"),
        pytest.param(list(kept_alive(known(TOKENS))), id="keep-alives"),
        pytest.param(known(TOKENS, hidden=60), id="hidden tokens"),
    ],
)
def test_known_delays_are_measured_within_3_percent(packets: list[Timed]) -> None:
    with serving(paced(packets)) as stub:
        answer = ask(read_target(stub.url, 30), Question("m", (("user", "Count."),), 600))
    assert isinstance(answer, Answer)
    first_s = 0.3 + 0.02 * ((answer.reasoning_tokens or 0) + (4 if len(answer.gaps_s) < 40 else 0))
    assert answer.first_token_s == pytest.approx(first_s, rel=0.03)
    assert answer.total_s == pytest.approx(0.3 + 0.02 * (TOKENS - 1), rel=0.03)
    shown = TOKENS - (answer.reasoning_tokens or 0)
    assert answer.decode_rate == pytest.approx(50, rel=0.03)
    assert sum(answer.gaps_s) == pytest.approx(0.02 * (shown - 1), rel=0.05)
