"""What a step of so many rows and what a prompt's token cost of late, told apart though one pass has both.

A chunk's cost is what a pass took beyond a step. Where prompts always wait, no step is ever seen without a chunk, and a
step taken for cheaper than it is makes tokens look dear, which makes chunks small, which makes them look dearer still.
So `blind` asks for two steps without a chunk now and then (two, because a step is handed out when the next one runs).
Knows seconds and counts; knows no tensors.

Thread: worker
"""

from __future__ import annotations

FIRST_STEP_S = 0.005
FALLING, RISING = 0.5, 0.2  # share of a new value; what is slow once may have been compiled, or had a neighbour
MOST_RISE = 2.0
LEAST_SHARE = 0.25  # of a pass, for its chunk
BLIND_PASSES = 8  # with chunks, before a number of rows is looked at again that was not seen alone
SEEN_PASSES = 64  # for so many it counts as seen
NEAR_ROWS = 0.75  # a step with so many rows or more tells enough of one with all


class Costs:
    """Seconds that follow what is measured."""

    def __init__(self) -> None:
        self.token_s: float | None = None
        self._steps_s: dict[int, float] = {}  # by rows
        self._seen: dict[int, int] = {}  # when a step with so many rows was, in passes with chunks
        self._passes = 0  # with chunks beside steps
        self._looks = 0  # steps without a chunk to come yet, for the sake of being seen
        self._looked = 0  # when that was asked last

    def step_s(self, rows: int) -> float:
        """A step of so many rows. Where none was seen, a row beyond the next fewer costs what a prompt's token does."""
        if rows in self._steps_s:
            return self._steps_s[rows]
        if not self._steps_s:
            return FIRST_STEP_S
        fewer = max((count for count in self._steps_s if count < rows), default=0)
        if fewer:
            return self._steps_s[fewer] + (rows - fewer) * (self.token_s or 0.0)
        least = min(self._steps_s)
        return self._steps_s[least] * rows / least

    def blind(self, rows: int) -> bool:
        """Whether this pass should be a step of these rows and nothing else. To be asked before each with a chunk."""
        if self._looks == 0 and self._passes - self._looked >= BLIND_PASSES:
            near = [at for count, at in self._seen.items() if NEAR_ROWS * rows <= count <= rows]
            if not near or self._passes - max(near) > SEEN_PASSES:
                self._looks, self._looked = 2, self._passes
        if self._looks == 0:
            return False
        self._looks -= 1
        return True

    def learn(self, seconds: float, rows: int, tokens: int, steps: int) -> float:
        """So many steps of `rows`, and a chunk of `tokens`, took so long together (0: none of these); returns what of
        it was the chunk's.
        """
        if not tokens:
            if steps:
                rising = RISING if steps == 1 else FALLING  # one of several was waited for by another
                self._steps_s[rows] = _followed(self._steps_s.get(rows), seconds / steps, rising)
                self._seen[rows] = self._passes
            return 0.0
        chunk_s = seconds - steps * self.step_s(rows)
        self.token_s = _followed(self.token_s, max(chunk_s, LEAST_SHARE * seconds) / tokens)
        self._passes += steps > 0
        return max(chunk_s, 0.0)


def _followed(before_s: float | None, seconds: float, rising: float = RISING) -> float:
    if before_s is None:
        return seconds
    seconds = min(seconds, MOST_RISE * before_s)
    return before_s + (seconds - before_s) * (FALLING if seconds < before_s else rising)
