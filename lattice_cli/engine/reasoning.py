"""The thinking budget: counts, then forces the closing marker, one id at a time.

Knows ids and bytes; knows no tensors. Source: s1 budget forcing, as lattice_serve does it: every token of the
reply counts, the forced marker takes the place of the token the model would have said.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marker:
    """The marker that closes a thought: its bytes, and the ids that spell it."""

    data: bytes
    ids: tuple[int, ...]


class ReasoningBudget:
    """Of one insertion of a row into a backend; asked once a token, in order.

    `opening` is the marker that must begin the reply for there to be a thought at all; None where the
    thought is open from the start, or where the budget holds whether or not one was opened.
    """

    def __init__(
        self, tokens: int, closing: Marker, opening: bytes | None, token_bytes: Callable[[int], bytes]
    ) -> None:
        self._tokens = tokens
        self._closing = closing
        self._opening = opening
        self._token_bytes = token_bytes
        self._settled = False

    def free(self, reply_tokens: int) -> bool:
        """Whether the token after `reply_tokens` of them is surely not forced, so that nobody need look at the ids."""
        return self._settled or reply_tokens < self._tokens

    def forced(self, reply: Sequence[int]) -> int | None:
        """The id that must come after `reply`, or None where the model may say what it likes.

        Cost: joins the reply's bytes, at most once for each id of the marker.
        """
        if self.free(len(reply)):
            return None
        text = b"".join(map(self._token_bytes, reply))
        thinking = self._opening is None or text.lstrip().startswith(self._opening)
        if not thinking or self._closing.data in text:
            self._settled = True
            return None
        said = self._marker_begun(reply)
        self._settled = said + 1 == len(self._closing.ids)
        return self._closing.ids[said]

    def _marker_begun(self, reply: Sequence[int]) -> int:
        """How many ids of the marker are out already: a row may start over in the middle of it."""
        past = reply[self._tokens :]
        for count in range(min(len(past), len(self._closing.ids) - 1), 0, -1):
            if tuple(past[-count:]) == self._closing.ids[:count]:
                return count
        return 0
