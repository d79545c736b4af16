"""Events in, a screen out: finished Markdown for good, the open end of an answer live below it.

Each row of an answer is written once: what is finished goes to the scroll-back, and only the last rows
of the open block are redrawn, at most a third of the window, so that even a window made half as wide
holds them.

Thread: any
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import TextIO

from lattice_cli.chat.blocks import Block, Kind, Markdown, Splitter, Thoughts, halves
from lattice_cli.chat.screen import Region, harmless
from lattice_cli.chat.view import Painter, Row
from lattice_cli.events import Event, Piece, Prefilled
from lattice_cli.job import Channel

DRAW_EVERY_S = 0.04
KEPT_ROWS = 2  # of a long paragraph, when its beginning is shown for good
CJK = 0x2E80  # from here on scripts break lines between any two letters
MAYBE_OPEN = re.compile(r"`|~~|\*(?!\s)|(?<!\w)_(?!\s)|\[[^\]]*$")  # shown marks that what follows may yet close
SPINNER = ("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\")


class LiveView:
    """Markdown in a terminal. `size` gives columns and rows and is read before each drawing."""

    def __init__(
        self,
        stream: TextIO,
        painter: Painter,
        size: Callable[[], tuple[int, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._region = Region(stream)
        self._painter = painter
        self._size = size
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """A new answer."""
        self._painter.begin()
        self._began_s = self._clock()
        self._next_s = 0.0
        self._channel: Channel | None = None
        self._splitter: Splitter = Markdown()
        self._done: list[Block] = []
        self._status = "reading the prompt"
        self._uncut_rows = 0

    def show(self, event: Event) -> None:
        """Take an event in; draw when it is time."""
        match event:
            case Prefilled(done=done, total=total):
                self._status = f"reading the prompt, {done:,} of {total:,} tokens" if done < total else "thinking"
            case Piece(channel=channel, text=text):
                self._turn_to(channel)
                self._done += self._splitter.push(harmless(text))
            case _:
                pass
        self.tick()

    def tick(self) -> None:
        """Draw, unless that was done a moment ago; never use more than a fifth of the time for it."""
        now_s = self._clock()
        if now_s >= self._next_s:
            self._draw()
            self._next_s = now_s + max(DRAW_EVERY_S, 4 * (self._clock() - now_s))

    def end(self) -> None:
        """The answer is over: print what is left, leave the cursor on a row of its own below it."""
        self._done += self._splitter.close()
        columns, _ = self._size()
        self._region.draw(self._finished(columns - 1), [])
        self._region.close()

    def _turn_to(self, channel: Channel) -> None:
        if channel is self._channel:
            return
        first = self._channel is None
        self._done += self._splitter.close()
        self._splitter = Thoughts(gap=not first) if channel is Channel.REASONING else Markdown(gap=not first)
        self._channel = channel
        self._uncut_rows = 0

    def _draw(self) -> None:
        columns, lines = self._size()
        width, most = columns - 1, min(max(lines // 3, 3), max(lines - 1, 1))
        done = self._finished(width)
        done += self._settled(width, most)
        rows = self._painter.fitted(
            [row for block in self._splitter.live() for row in self._painter.rows(block, width)], width
        )
        if self._channel is None:
            rows = self._painter.fitted([self._painter.note(self._waiting())], width)[:1]
        if len(rows) > most:
            rows = [self._painter.note("..."), *rows[-most + 1 :]]
        self._region.draw(done, self._painter.ansi(rows))

    def _finished(self, width: int) -> list[str]:
        rows = [row for block in self._done for row in self._painter.finish(block, width)]
        self._uncut_rows = 0 if self._done else self._uncut_rows
        self._done = []
        return self._painter.ansi(rows)

    def _settled(self, width: int, most: int) -> list[str]:
        """The first rows of a paragraph that grew long, taken out of what is live."""
        live = self._splitter.live()
        if len(live) != 1 or live[0].kind in (Kind.CODE, Kind.FENCE):
            return []
        rows = self._painter.rows(live[0], width)
        if len(rows) <= max(most, self._uncut_rows):
            return []
        count = self._cut_at(live[0], rows, width)
        if count is None:
            self._uncut_rows = len(rows) + most
            return []
        return self._painter.ansi(self._painter.rows(self._splitter.cut(count), width))

    def _cut_at(self, block: Block, rows: list[Row], width: int) -> int | None:
        """Where a block may be cut: both halves alone look as they do together, and nothing is open there."""
        text = block.text
        places = [i for i in range(1, len(text)) if text[i].isalpha() and (text[i - 1] in " \n" or ord(text[i]) > CJK)]
        height = len(rows) - KEPT_ROWS
        found = bisect_right(places, height, key=lambda i: len(self._painter.rows(halves(block, i)[0], width)))
        if found == 0 or text.startswith("|"):
            return None
        first, rest = (self._painter.rows(half, width) for half in halves(block, places[found - 1]))
        if self._painter.ansi([*first, *rest]) != self._painter.ansi(rows):
            return None
        plain = "\n".join("".join(segment.text for segment in row) for row in first)
        return None if block.kind is not Kind.THOUGHT and MAYBE_OPEN.search(plain) else places[found - 1]

    def _waiting(self) -> str:
        frames = SPINNER[0 if self._painter.fancy else 1]
        return f"{frames[int((self._clock() - self._began_s) * 10) % len(frames)]} {self._status}"
