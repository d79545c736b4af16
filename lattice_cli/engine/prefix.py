"""The prefix cache: the state that a network had after tokens it has read before, so that it need not read them again.

One budget of bytes over all that is kept; what two entries share counts once; what was not used longest goes first.
Ids are compared token by token. Knows ids and bytes; how a state is copied, cut and measured is its keeper's
(prefix_states.py).

Thread: worker (any: `PrefixCache.stats`)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lattice_cli.engine.prefix_cuts import SPACING_TOKENS, choose_cuts
from lattice_cli.engine.prefix_kept import CacheStats, Found, Keeper, Kept
from lattice_cli.engine.prefix_tree import Node, PrefixTree


@dataclass(eq=False, slots=True)
class Entry:
    kept: Kept
    node: Node[Entry]

    @property
    def trims(self) -> bool:
        return self.kept.trims

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token for node in [*self.node.path()][::-1] for token in node.edge)


class PrefixCache:
    """Entries by their ids. A budget of 0 keeps nothing. `stats` is replaced whole, so any thread may read it."""

    def __init__(self, keeper: Keeper | None = None, budget_bytes: int = 0) -> None:
        self.spacing_tokens = SPACING_TOKENS  # of cuts in a long text
        self._keeper = keeper
        self._tree: PrefixTree[Entry] = PrefixTree()
        self._uses: dict[Entry, None] = {}  # least recently used first
        self._holders: dict[Hashable, int] = {}  # piece -> entries that have it
        self._bytes = 0  # of distinct pieces
        self._doubtful: list[Entry] = []
        self.snapshot_bytes = 0  # what the newest entry had for itself
        self.stats = CacheStats(budget_bytes if keeper is not None else 0)

    @property
    def on(self) -> bool:
        return self.stats.budget_bytes > 0

    def find(self, ids: Sequence[int]) -> Found:
        """The longest usable prefix of a prompt; at least its last token is left to read. Counts as a use."""
        if not self.on:
            return Found()
        match = self._tree.match(tuple(ids[:-1]))
        entry, tokens = self._tree.usable(match)
        if entry is None or tokens == 0:
            return Found(known=match.depth)
        assert self._keeper is not None
        caches = self._keeper.restore(entry.kept, tokens)
        self._touch(entry)
        return Found(tokens, caches, match.depth)

    def count(self, reused_tokens: int) -> None:
        """One prompt was looked up, and what of it was reused in the end."""
        stats = self.stats
        self.stats = replace(
            stats,
            lookups=stats.lookups + 1,
            hits=stats.hits + (reused_tokens > 0),
            reused_tokens=stats.reused_tokens + reused_tokens,
        )

    def trims(self, caches: list[Any]) -> bool:
        """Whether what is kept of such caches would serve shorter prefixes, too."""
        return self._keeper is not None and self._keeper.trimmable(caches)

    def cuts(self, turns: Sequence[int], total: int, done: int, known: int) -> list[int]:
        """Where the reading of a prompt should stop for its state to be kept; see prefix_cuts.py."""
        if self._keeper is None or self._keeper.trims or not self.on:
            return []
        stats = self.stats
        return choose_cuts(turns, total, done, known, self.snapshot_bytes, stats.budget_bytes, self.spacing_tokens)

    def keep(self, ids: Sequence[int], caches: list[Any]) -> None:
        """Keep a row's caches, which hold exactly `ids`. They stay the row's."""
        if not self.on or not ids:
            return
        ids = tuple(ids)
        match = self._tree.match(ids)
        near = next((node.entry for node in match.beyond.below() if node.entry is not None), None)
        if match.depth == len(ids) and (known := self._tree.known(match)) is not None:
            self._touch(known)
            return
        assert self._keeper is not None
        kept = self._keeper.keep(caches, len(ids), near.kept if near else None, match.depth)
        if kept is not None and sum(kept.pieces.values()) <= self.stats.budget_bytes:
            self._add(ids, kept)

    def trust(self) -> None:
        """All that was kept so far came out of steps that went well."""
        self._doubtful.clear()

    def distrust(self) -> None:
        """A step failed: forget what may have come out of it."""
        for entry in self._doubtful:
            if entry in self._uses:
                self._drop(entry)
        self._doubtful.clear()
        self._tell()

    def clear(self) -> None:
        """Forget everything."""
        for entry in list(self._uses):
            self._drop(entry)
        self._doubtful.clear()
        self._tell()

    def release(self, size: int) -> None:
        """Give up so many bytes at least, or all there are: rows that run need them."""
        left = self._bytes - size
        while self._uses and self._bytes > left:
            self._drop(next(iter(self._uses)))
            self.stats = replace(self.stats, evictions=self.stats.evictions + 1)
        self._tell()

    def entries(self) -> Iterator[tuple[tuple[int, ...], Kept]]:
        """What is kept, least recently used first."""
        for entry in list(self._uses):
            yield entry.ids, entry.kept

    @property
    def saves(self) -> bool:
        """Whether `save` has something to do; see prefix_saved.py."""
        return False

    def save(self) -> None:
        """Do some of what is left for when there are no rows."""

    def close(self) -> None:
        """Forget everything; nothing follows."""
        self.clear()

    def _add(self, ids: tuple[int, ...], kept: Kept) -> Entry:
        self.snapshot_bytes = sum(size for piece, size in kept.pieces.items() if piece not in self._holders)
        node = self._tree.place(ids)
        entry = node.entry = Entry(kept, node)
        for piece in kept.pieces:
            self._holders[piece] = self._holders.get(piece, 0) + 1
        self._bytes += self.snapshot_bytes
        self._doubtful.append(entry)
        if kept.trims:  # it serves what they served
            for shorter in [place.entry for place in node.path() if place is not node]:
                if shorter is not None and shorter.kept.trims:
                    self._drop(shorter)
        self._touch(entry)
        while self._bytes > self.stats.budget_bytes:
            self._drop(next(iter(self._uses)))
            self.stats = replace(self.stats, evictions=self.stats.evictions + 1)
        self._tell()
        return entry

    def _touch(self, entry: Entry) -> None:
        """A use, of the entries on its way, too: they serve whoever edits what came between."""
        for node in [*entry.node.path()][::-1]:
            if node.entry is not None and node.entry is not entry:
                self._uses[node.entry] = self._uses.pop(node.entry, None)
        self._uses[entry] = self._uses.pop(entry, None)

    def _drop(self, entry: Entry) -> None:
        del self._uses[entry]
        for piece, size in entry.kept.pieces.items():
            self._holders[piece] -= 1
            if self._holders[piece] == 0:
                del self._holders[piece]
                self._bytes -= size
        self._tree.take(entry.node)

    def _tell(self) -> None:
        self.stats = replace(self.stats, bytes=self._bytes, entries=len(self._uses))
