"""A prefix cache with a second tier on the disk (prefix_disk.py).

What is kept is dumped while there are no rows, one entry at a time, and written by a thread of its own; a file is read
where it serves a prompt better than what is in memory.

Thread: worker
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from lattice_cli.engine.prefix import Entry, PrefixCache
from lattice_cli.engine.prefix_disk import DiskShelf
from lattice_cli.engine.prefix_kept import Found, Keeper, Kept

WORTH_TOKENS = 32  # a file is read only for more tokens than that
CLOSE_S = 5.0  # for saving what is left at the end


class SavedPrefixCache(PrefixCache):
    """See PrefixCache. Entries that go from memory before they are dumped are not saved."""

    def __init__(self, keeper: Keeper, budget_bytes: int, disk: DiskShelf) -> None:
        super().__init__(keeper, budget_bytes)
        self._knows = keeper
        self._disk = disk
        self._unsaved: dict[Entry, None] = {}

    def find(self, ids: Sequence[int]) -> Found:
        if self.on:
            self._fetch(tuple(ids[:-1]))
        return super().find(ids)

    @property
    def saves(self) -> bool:
        return bool(self._unsaved) and self._disk.usable

    def save(self) -> None:
        """Give one entry to the disk, the newest first, unless it is busy. Cost: a copy of its state."""
        if not self._disk.ready:
            return
        entry, _ = self._unsaved.popitem()
        dump = self._knows.dump(entry.kept)
        if dump is not None:
            self._disk.save(entry.ids, entry.trims, dump)

    def close(self) -> None:
        until_s = time.monotonic() + CLOSE_S
        while self.saves and time.monotonic() < until_s:
            self.save() if self._disk.ready else time.sleep(0.005)
        self._disk.close(max(0.1, until_s - time.monotonic()))
        self.clear()

    def _fetch(self, ids: tuple[int, ...]) -> None:
        """Bring from the disk what serves `ids` well beyond what is here."""
        _, tokens = self._tree.usable(self._tree.match(ids))
        record = self._disk.better(ids, tokens + WORTH_TOKENS)
        loaded = self._disk.load(record) if record is not None else None
        if record is None or loaded is None:
            return
        kept = self._knows.load(loaded[1], len(loaded[0]))
        if kept is None:
            self._disk.refuse(record, "its contents are not this model's")
        elif sum(kept.pieces.values()) <= self.stats.budget_bytes:
            self._unsaved.pop(self._add(loaded[0], kept), None)

    def _add(self, ids: tuple[int, ...], kept: Kept) -> Entry:
        entry = super()._add(ids, kept)
        if entry in self._uses:
            self._unsaved[entry] = None
        return entry

    def _drop(self, entry: Entry) -> None:
        super()._drop(entry)
        self._unsaved.pop(entry, None)
