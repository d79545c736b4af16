"""Events in, a screen out: finished Markdown for good, the open end of an answer live below it.

Each row of an answer is written once: what is finished goes to the scroll-back, and only the last rows
of the open block are redrawn, at most a third of the window, so that even a window made half as wide
holds them. A thought is live only: one row says how long it took. What is typed meanwhile stands in the last row.

Thread: any
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from lattice_cli.chat.ahead import ahead_rows
from lattice_cli.chat.blocks import Block, Splitter
from lattice_cli.chat.markdown_blocks import Markdown
from lattice_cli.chat.screen import Region
from lattice_cli.chat.settle import settled
from lattice_cli.chat.thought import Thought, unfolded
from lattice_cli.chat.view import Painter, Row
from lattice_cli.events import Event, Piece, Prefilled
from lattice_cli.job import Channel

if TYPE_CHECKING:
    from lattice_cli.chat.partner import Thinking

DRAW_EVERY_S = 0.04
SPINNER = ("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\")
SLOW_S = 1.0  # from here on a wait says how long it has been


class LiveView:
    """Markdown in a terminal. `size` gives columns and rows and is read before each drawing; `thinking` says how
    thoughts are shown, `typed` what the user has typed ahead.
    """

    def __init__(
        self,
        stream: TextIO,
        painter: Painter,
        size: Callable[[], tuple[int, int]],
        clock: Callable[[], float] = time.monotonic,
        *,
        thinking: Callable[[], Thinking] = lambda: "show",
        typed: Callable[[], str] = lambda: "",
    ) -> None:
        self._region = Region(stream)
        self._painter = painter
        self._size = size
        self._clock = clock
        self._thinking = thinking
        self._typed = typed
        self._last_thought = ""
        self.begin()

    def begin(self) -> None:
        """A new answer."""
        self._painter.begin()
        self._began_s = self._clock()
        self._next_s = 0.0
        self._any = False  # anything of the answer came
        self._thought: Thought | None = None
        self._splitter: Splitter = Markdown()
        self._done: list[Block] = []
        self._notes: list[Row] = []  # above what is done
        self._status = "reading the prompt"
        self._ahead = ""
        self._uncut_rows = 0

    def show(self, event: Event) -> None:
        """Take an event in; draw when it is time."""
        match event:
            case Prefilled(done=done, total=total):
                self._status = f"reading the prompt, {done:,} of {total:,} tokens" if done < total else "thinking"
            case Piece(channel=Channel.REASONING, text=text) if text:
                self._think(self._painter.letters(text))
            case Piece(channel=Channel.ANSWER, text=text) if text:
                self._end_thought(ended=True)
                self._any = True
                self._done += self._splitter.push(self._painter.letters(text))
            case _:
                pass
        self.tick()

    def tick(self) -> None:
        """Draw, unless that was done a moment ago; never use more than a fifth of the time for it.

        What is typed is shown at once.
        """
        now_s = self._clock()
        ahead = self._typed()
        if now_s >= self._next_s or ahead != self._ahead:
            self._ahead = ahead
            self._draw()
            self._next_s = now_s + max(DRAW_EVERY_S, 4 * (self._clock() - now_s))

    def again(self) -> None:
        """What was shown of the open end is gone: draw it anew."""
        self._region.lose()

    def end(self) -> None:
        """The answer is over: print what is left, leave the cursor on a row of its own below it."""
        self._end_thought(ended=False)
        self._done += self._splitter.close()
        columns, _ = self._size()
        self._region.draw(self._finished(columns - 1), [])
        self._region.close()

    def unfold(self) -> bool:
        """Show the last thought whole. False: there is none."""
        columns, _ = self._size()
        self._region.draw(unfolded(self._painter, self._last_thought, columns - 1), [])
        self._region.close()
        return bool(self._last_thought)

    def recall(self, text: str) -> None:
        """Show an answer that was given before."""
        self.begin()
        self._any = True
        self._done = self._splitter.push(self._painter.letters(text))
        self.end()

    # Thoughts.

    def _think(self, text: str) -> None:
        if self._thought is None:
            self._done += self._splitter.close()
            self._thought = Thought(self._clock())
        self._thought.push(text)

    def _end_thought(self, *, ended: bool) -> None:
        if self._thought is None:
            return
        columns, _ = self._size()
        gap: list[Row] = [[]] if self._any else []
        before = [row for block in self._done for row in self._painter.finish(block, columns - 1)]
        note = self._painter.note(self._thought.folded(self._clock(), ended=ended))
        self._notes += [*before, *gap, note]
        self._last_thought, self._done = self._thought.text, []
        self._thought, self._splitter, self._uncut_rows = None, Markdown(gap=True), 0

    # Drawing.

    def _draw(self) -> None:
        columns, lines = self._size()
        width, most = columns - 1, min(max(lines // 3, 3), max(lines - 2, 1))
        done = self._finished(width)
        if self._thought is not None:
            rows = [self._waiting("thinking", self._thought.seconds(self._clock()))]
            if self._thinking() == "show":
                rows += self._thought.rows(self._painter, width, most - 1)
            rows = self._painter.fitted(rows, width)
        elif not self._any:
            rows = self._painter.fitted([self._waiting(self._status, self._clock() - self._began_s)], width)[:1]
        else:
            done += self._settled(width, most)
            live = [row for block in self._splitter.live() for row in self._painter.rows(block, width)]
            rows = self._painter.fitted(live, width)
        if len(rows) > most:
            rows = [self._painter.note("..."), *rows[-most + 1 :]]
        self._region.draw(done, self._painter.ansi(rows + ahead_rows(self._painter, self._ahead, width)))

    def _finished(self, width: int) -> list[str]:
        rows = self._notes + [row for block in self._done for row in self._painter.finish(block, width)]
        self._uncut_rows = 0 if self._done else self._uncut_rows
        self._done, self._notes = [], []
        return self._painter.ansi(rows)

    def _settled(self, width: int, most: int) -> list[str]:
        """The first rows of a block that grew long, taken out of what is live."""
        live = self._splitter.live()
        if len(live) != 1:
            return []
        rows = self._painter.rows(live[0], width)
        if len(rows) <= max(most, self._uncut_rows):
            return []
        parts = settled(self._painter, live[0], rows, width)
        if parts is None:
            self._uncut_rows = len(rows) + most
            return []
        self._splitter.cut(parts[1])
        return self._painter.ansi(self._painter.rows(parts[0], width))

    def _waiting(self, what: str, seconds: float) -> Row:
        frames = SPINNER[0 if self._painter.fancy else 1]
        frame = frames[int((self._clock() - self._began_s) * 10) % len(frames)]
        return self._painter.note(f"{frame} {what}" + (f", {seconds:.0f} s" if seconds >= SLOW_S else ""))
