"""Whether there is memory for one more row: bytes of keys, values and recurrent states at the greatest lengths that
rows may come to, against a limit.

A row counts with its prompt and what its reply may come to in its next thousand tokens, at most `max_tokens` and the
window: who names no limit may say as much as fits, and seldom does, so that counted in full it would keep everybody
else waiting. Rows that outgrow the memory together give their places back, the newest first (engine.py), so none that
runs is short of memory by one that came later. What the prefix cache holds counts too, and gives way.
Knows bytes and rows; knows no tensors (see memory_cost.py).

Thread: worker
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from lattice_cli.engine.row import Row
from lattice_cli.errors import PromptTooLong

MEBIBYTE, GIBIBYTE = 1 << 20, 1 << 30
GROWTH_TOKENS = 1024  # most replies are shorter, and so never have to give their place back
FED_AHEAD_TOKENS = 1  # a step is under way when the tokens of the one before it are told


def size_text(size_bytes: int) -> str:
    """For people."""
    if size_bytes >= GIBIBYTE:
        return f"{size_bytes / GIBIBYTE:.1f} GiB"
    return f"{size_bytes / MEBIBYTE:.1f} MiB"


@dataclass(frozen=True, slots=True)
class Growing:
    """Layers whose caches have `token_bytes` for each token, in steps of `granule_tokens`, up to `most_tokens`."""

    token_bytes: int
    granule_tokens: int
    most_tokens: int | None = None

    def of(self, tokens: int) -> int:
        held = tokens if self.most_tokens is None else min(tokens, self.most_tokens)
        return -(-held // self.granule_tokens) * self.granule_tokens * self.token_bytes


@dataclass(frozen=True, slots=True)
class RowCost:
    """What a row's caches take. `padded`: in a batch each row is as long as the longest, and a row that joins is there
    twice for a moment; else rows have pages of their own.
    """

    growing: tuple[Growing, ...]
    fixed_bytes: int
    padded: bool

    def of(self, tokens: int) -> int:
        return self.fixed_bytes + sum(part.of(tokens) for part in self.growing)

    def batch(self, lengths: Collection[int]) -> int:
        """All rows of such lengths; the last one is joining."""
        if not lengths:
            return 0
        if not self.padded:
            return sum(map(self.of, lengths))
        *_, newcomer = lengths
        return len(lengths) * self.of(max(lengths)) + self.of(newcomer)

    def most_tokens(self, limit_bytes: int, window: int) -> int:
        """The longest row that fits alone; 0 where none does."""
        few, many = 0, window
        while few < many:
            tokens = (few + many + 1) // 2
            few, many = (tokens, many) if self.batch((tokens,)) <= limit_bytes else (few, tokens - 1)
        return few


class Memory:
    """`cached` are the bytes of the prefix cache; `release(bytes)` has it give up so many. A reply counts by so many
    tokens at a time as `growth_tokens`.
    """

    def __init__(
        self,
        cost: RowCost,
        limit_bytes: int,
        window: int,
        cached: Callable[[], int] = lambda: 0,
        release: Callable[[int], None] = lambda size: None,
        growth_tokens: int = GROWTH_TOKENS,
    ) -> None:
        self._cost = cost
        self._limit_bytes = limit_bytes
        self._window = window
        self._cached = cached
        self._release = release
        self._growth_tokens = growth_tokens

    def used(self, running: Iterable[Row]) -> int:
        """Bytes that the rows may come to before they are counted again."""
        return self._cost.batch([self._length(row) for row in running])

    def holds(self, running: Iterable[Row]) -> bool:
        """Whether there is memory for all of these, as far as they have grown."""
        return self.used(running) <= self._limit_bytes

    def fits(self, row: Row, running: Collection[Row]) -> bool:
        """Whether there is memory for a row beside those that run; where there is, the prefix cache gives way to it."""
        beside = (*running, row)
        if not self.holds(beside):
            return False
        self.settle(beside)
        return True

    def settle(self, running: Iterable[Row]) -> None:
        """Have the prefix cache give way to the rows that run."""
        if (over := self.used(running) + self._cached() - self._limit_bytes) > 0:
            self._release(over)

    def check(self, row: Row) -> None:
        """Raises: PromptTooLong for a row that will never fit, with the numbers."""
        most_tokens = self._whole(row)
        needed = self._cost.batch((most_tokens,))
        if needed <= self._limit_bytes:
            return
        room = self._cost.most_tokens(self._limit_bytes, self._window) - row.prompt_tokens
        raise PromptTooLong(
            f"{most_tokens} tokens would take {size_text(needed)} of memory, and there are "
            f"{size_text(self._limit_bytes)} for all replies",
            param="max_tokens" if room > 0 else None,
            hint=f"send `max_tokens` of at most {room}" if room > 0 else "shorten the prompt",
        )

    def give_way(self) -> None:
        """Memory ran out all the same: keep nothing that nobody needs."""
        self._release(self._cached())

    def _length(self, row: Row) -> int:
        said = len(row.emitted) + FED_AHEAD_TOKENS
        ahead = (said // self._growth_tokens + 1) * self._growth_tokens
        return min(self._whole(row), row.prompt_tokens + ahead)

    def _whole(self, row: Row) -> int:
        return min(self._window, row.prompt_tokens + row.job.limits.max_tokens)
