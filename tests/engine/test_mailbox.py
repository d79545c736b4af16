"""Who waits for mail waits no longer than it said, whatever signals come.

Thread: any
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time

import pytest

from lattice_cli.engine.mailbox import Mailbox

pytestmark = pytest.mark.pure


def test_a_wait_ends_also_where_a_signal_took_longer_than_it() -> None:
    """Ctrl-Z and fg in an answer, or Ctrl-C in the wrong moment: the chat waited for ever and could not be stopped."""
    before = signal.signal(signal.SIGUSR1, lambda signum, frame: time.sleep(0.2))
    key = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    key.start()
    try:
        with pytest.raises(queue.Empty):
            Mailbox[int]().get(0.1)
    finally:
        key.join()
        signal.signal(signal.SIGUSR1, before)


def test_everything_comes_in_order_from_whoever_leaves_it() -> None:
    box: Mailbox[tuple[int, int]] = Mailbox()
    writers = [
        threading.Thread(target=lambda who=who: [box.put((who, number)) for number in range(2000)]) for who in range(4)
    ]
    for writer in writers:
        writer.start()
    got = [box.get(None if number % 2 else 10.0) for number in range(8000)]
    for who in range(4):
        assert [number for writer, number in got if writer == who] == list(range(2000))
    for seconds in (0.0, 0.01, -1.0):
        with pytest.raises(queue.Empty):
            box.get(seconds)
