"""From tokens to certain text: Detokenizer, ChannelSplitter, StopScanner, each with `push` and `flush`.

    token -> Detokenizer -> ChannelSplitter -> StopScanner (answer only) -> text that may be sent

Each stage holds back only what is not yet certain: bytes of an unfinished code point, a possible marker,
a possible stop string. Invariant: the joined output never depends on how the input was split.

Thread: worker
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from lattice_cli.job import Channel

Segment = tuple[Channel, str]


class Detokenizer:
    """Token ids -> whole code points. Unfinished UTF-8 waits; bytes that can never be whole become U+FFFD."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that `token_id` makes certain; may be empty."""
        return self._decoder.decode(self._token_bytes(token_id))

    @property
    def unfinished(self) -> bool:
        """Some bytes wait for the rest of their letter."""
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        """What an unfinished tail becomes at the end of a reply."""
        return self._decoder.decode(b"", final=True)


def held_suffix(text: str, needles: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of a needle."""
    longest = max((len(needle) for needle in needles), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[-length:]
        if any(needle.startswith(tail) for needle in needles):
            return length
    return 0


class _Phase(Enum):
    OPENING = "nothing visible yet: an opening marker may come"
    REASONING = "inside the block: the closing marker may come"
    ANSWERING = "the answer: a marker here is prose"


class ChannelSplitter:
    """Splits a reply at the markers round reasoning; with no markers all is answer.

    The block counts only at the start of a reply, so an answer that mentions a marker stays an answer.
    White space before the opening marker and line breaks beside either marker belong to the markers:
    models write `<think>\\n...\\n</think>\\n\\nanswer`. `opens_in` is REASONING where the template itself
    opened the block. `begins` tells where in the whole text each of the segments given last began.
    """

    def __init__(self, think: tuple[str, str] | None, opens_in: Channel = Channel.ANSWER) -> None:
        self._open, self._close = think or ("", "")
        opened = think is not None and opens_in is Channel.REASONING
        self._phase = _Phase.REASONING if opened else _Phase.OPENING if think else _Phase.ANSWERING
        self._breaks_dropped = opened
        self._held = ""
        self._at = 0  # where in the whole text the held one begins
        self.begins: list[int] = []

    def push(self, text: str) -> list[Segment]:
        """The segments that `text` makes certain, in order; none is empty."""
        self._held += text
        return self._drain(final=False)

    def flush(self) -> list[Segment]:
        """What was held back, at the end of a reply."""
        return self._drain(final=True)

    def _drain(self, final: bool) -> list[Segment]:
        segments: list[Segment] = []
        self.begins = []
        if self._phase is _Phase.OPENING:
            self._look_for_opening(final)
        if self._phase is _Phase.REASONING:
            self._take_thought(final, segments)
        if self._phase is _Phase.ANSWERING:
            self._drop_breaks()
            self._give(len(self._held), Channel.ANSWER, segments)
        return segments

    def _cut(self, count: int) -> None:
        self._held, self._at = self._held[count:], self._at + count

    def _give(self, count: int, channel: Channel, segments: list[Segment]) -> None:
        if count:
            segments.append((channel, self._held[:count]))
            self.begins.append(self._at)
            self._cut(count)

    def _look_for_opening(self, final: bool) -> None:
        visible = self._held.lstrip()
        if visible.startswith(self._open):
            self._cut(len(self._held) - len(visible) + len(self._open))
            self._phase, self._breaks_dropped = _Phase.REASONING, True
        elif final or not self._open.startswith(visible):
            self._phase, self._breaks_dropped = _Phase.ANSWERING, False

    def _take_thought(self, final: bool, segments: list[Segment]) -> None:
        self._drop_breaks()
        at = self._held.find(self._close)
        if at >= 0:
            thought = self._held[:at].rstrip("\r\n")
            self._give(len(thought), Channel.REASONING, segments)
            self._cut(at - len(thought) + len(self._close))
            self._phase, self._breaks_dropped = _Phase.ANSWERING, True
            return
        self._give(len(self._held) - (0 if final else self._uncertain()), Channel.REASONING, segments)

    def _drop_breaks(self) -> None:
        if self._breaks_dropped:
            self._cut(len(self._held) - len(self._held.lstrip("\r\n")))
            self._breaks_dropped = not self._held

    def _uncertain(self) -> int:
        """How much of the held text may still turn out to be the marker or the line breaks before it."""
        keep = held_suffix(self._held, (self._close,))
        body = self._held[: len(self._held) - keep]
        return keep + len(body) - len(body.rstrip("\r\n"))


@dataclass(slots=True)
class StopScanner:
    """Cuts a text before the first stop string, wherever tokens break.

    First is the match that ends first; of those, the one that begins first. At most the longest stop
    string less one character is held back, and it is released when the match does not complete. With `keep` the
    stop string itself is certain, too.
    """

    stops: tuple[str, ...]
    keep: bool = False
    matched: str | None = None
    _held: str = field(default="")

    def push(self, text: str) -> str:
        """The text that is certain. Nothing after a match."""
        if self.matched is not None:
            return ""
        if not self.stops:
            return text
        searched = self._held + text
        found = min(
            ((searched.find(stop) + len(stop), searched.find(stop), stop) for stop in self.stops if stop in searched),
            default=None,
        )
        if found is not None:
            end, begin, self.matched = found
            self._held = ""
            return searched[: end if self.keep else begin]
        keep = held_suffix(searched, self.stops)
        self._held = searched[len(searched) - keep :]
        return searched[: len(searched) - keep]

    def flush(self) -> str:
        """What was held back, at the end of a reply that no stop string ended."""
        held, self._held = self._held, ""
        return held
