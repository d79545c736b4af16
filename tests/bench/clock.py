"""A clock that only a test moves.

Thread: any
"""

from __future__ import annotations


class VirtualClock:
    """`clock()` reads it, `clock.sleep(s)` moves it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now_s += seconds
