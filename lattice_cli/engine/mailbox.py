"""What threads leave for one reader, who waits no longer than it said.

`queue.SimpleQueue` waits for ever where a signal comes (Ctrl-C, Ctrl-Z and fg) and the time is over before its handler
is: seen with Python 3.11.7, which then goes on with what is left of the time, and less than nothing means no end.
A lock does not.

Thread: any (one reader at a time)
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """A queue without a bound."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._bell = threading.Lock()  # open: something may have come
        self._bell.acquire()

    def put(self, item: Item) -> None:
        """Leave an item. Never blocks."""
        self._items.put(item)
        with suppress(RuntimeError):  # it is open already
            self._bell.release()

    def empty(self) -> bool:
        """Whether nothing is here now."""
        return self._items.empty()

    def get(self, timeout_s: float | None = None) -> Item:
        """The next item, waiting at most `timeout_s` (None: as long as it takes). Raises: queue.Empty."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with suppress(queue.Empty):
                return self._items.get_nowait()
            left_s = -1.0 if until_s is None else until_s - time.monotonic()
            if until_s is not None and left_s <= 0:
                raise queue.Empty
            self._bell.acquire(timeout=min(left_s, threading.TIMEOUT_MAX))
