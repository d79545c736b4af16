"""What the prefix cache speaks of: a state that is kept, who keeps it, what is found, and the counts of all that.

Knows ids and bytes; what a state is, only its keeper knows.

Thread: worker (any: CacheStats)
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Kept:
    """A state after `tokens` tokens. `pieces` are all its parts in memory with their bytes, some of which others may
    have too. `trims`: the state after any fewer of its tokens can be had of it.
    """

    tokens: int
    state: Any
    pieces: Mapping[Hashable, int]
    trims: bool


@dataclass(frozen=True, slots=True)
class Dump:
    """A state as bytes: `meta` is JSON that its keeper reads again."""

    meta: Any
    parts: list[bytes]


class Keeper(Protocol):
    """Knows one network's caches. `trims`: all its states do (see Kept), however long."""

    @property
    def trims(self) -> bool: ...

    def trimmable(self, caches: list[Any]) -> bool:
        """Whether a state of such caches, as they are now, would trim."""

    def keep(self, caches: list[Any], tokens: int, like: Kept | None, shared: int) -> Kept | None:
        """A copy of one row's caches, which hold `tokens` tokens; `like` has the first `shared` of them, so its pieces
        may be used. None where the caches hold something else.
        """

    def restore(self, kept: Kept, tokens: int) -> list[Any]:
        """Caches of a row of its own with the first `tokens` tokens; all of them where `kept` does not trim."""

    @property
    def dumps(self) -> bool:
        """Whether states of this network can be written as bytes."""

    def dump(self, kept: Kept) -> Dump | None:
        """What is kept as bytes of their own; None for a kind that has none. Cost: a copy."""

    def load(self, dump: Dump, tokens: int) -> Kept | None:
        """The state of `tokens` tokens that was dumped so; None for what it never was."""


@dataclass(frozen=True, slots=True)
class Found:
    """`caches` hold the first `tokens` ids (None for none); `known` of them were met before."""

    tokens: int = 0
    caches: list[Any] | None = None
    known: int = 0


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache holds and did: `lookups` of prompts, `hits` that reused something, and how many `reused_tokens`."""

    budget_bytes: int = 0
    bytes: int = 0
    entries: int = 0
    lookups: int = 0
    hits: int = 0
    reused_tokens: int = 0
    evictions: int = 0
