"""A client that holds its connection and reads nothing, over a real socket.

Thread: any
"""

from __future__ import annotations

import logging
import socket

import pytest

from lattice_cli.serve import server
from lattice_cli.settings import EngineSettings
from tests.serve.stage import LIMIT_S, PATH, REPLIES, Raw, body, eventually, served

pytestmark = pytest.mark.wire

FLOOD = {"when": "flood", "tokens": ["x" * 200_000], "then": "repeat", "token_ms": 5}


class Deaf(Raw):
    """Takes a few kilobytes, and no more."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(("127.0.0.1", port))
        self.heard = b""


def test_a_client_that_reads_nothing_loses_its_reply_and_nobody_waits_for_it(caplog: pytest.LogCaptureFixture) -> None:
    """Its slot is free again while it is still connected, and the log says why."""
    with (
        served([FLOOD, *REPLIES], engine=EngineSettings(max_rows=1, max_pending=1), context_tokens=10**9) as house,
        caplog.at_level(logging.WARNING, "lattice.engine"),
        Deaf(house.port) as deaf,
    ):
        deaf.post(body("flood", stream=True, max_tokens=10**8))
        deaf.until(b"xxxx")
        eventually(lambda: "the reply was not read" in caplog.text)
        eventually(house.idle)
        with house.client() as client:
            assert "\nlattice_inflight_requests 2.0\n" in client.get("/metrics").text  # its thread waits with it
            said = client.post(PATH, json=body()).json()
        assert said["choices"][0]["message"]["content"] == "hello world"


def test_a_connection_that_takes_nothing_for_long_is_closed_and_its_thread_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So many clients as there are threads could hold the whole server otherwise."""
    monkeypatch.setattr(server, "STALL_S", 1.0)
    monkeypatch.setattr(server, "LOOK_S", 1)
    with (
        served([FLOOD, *REPLIES], engine=EngineSettings(max_rows=1, max_pending=1), context_tokens=10**9) as house,
        Deaf(house.port) as deaf,
        house.client() as client,
    ):
        deaf.post(body("flood", stream=True, max_tokens=10**8))
        deaf.until(b"xxxx")
        eventually(lambda: "\nlattice_inflight_requests 1.0\n" in client.get("/metrics").text)
        eventually(house.idle)
