"""The disk tier of the prefix cache: entries in files, so that they survive a restart.

One file an entry (prefix_file.py), written whole under another name first. It is read only when it serves a prompt
better than memory does, and what is damaged, cut short or of another model is deleted with one line in the log. All
folders of models together have one budget; what was not used longest goes first.

Knows files and bytes; what a state is, only its keeper knows. A thread of its own writes; everything else is the
engine's.

Thread: worker (any: `_write`)
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice_cli.engine.prefix_file import DIGEST_BYTES, Damaged, compose, read_head, read_whole, write_whole
from lattice_cli.engine.prefix_kept import Dump
from lattice_cli.engine.prefix_tree import Node, PrefixTree

log = logging.getLogger("lattice.engine")

SUFFIX = ".prefix"
ABANDONED_S = 3600.0  # a half-written file of a process that is gone
WAITING_FILES = 2  # dumped and not yet written: each is a copy of a state in memory


@dataclass(eq=False, slots=True)
class Record:
    """A file. `written` is set by the writing thread."""

    file: Path
    nbytes: int
    trims: bool
    node: Node[Record]
    written: bool = True


class DiskShelf:
    """Files of one model (`key`) in a folder of its own below `root`. `budget_bytes` is for all below `root`. Not
    `usable` any more when the disk refused something.
    """

    def __init__(self, root: Path, key: str, budget_bytes: int) -> None:
        self._root, self._key, self._budget = root, key, budget_bytes
        self._folder = root / key[:24]
        self._tree: PrefixTree[Record] = PrefixTree()
        self._work: queue.Queue[tuple[Record, list[bytes]] | None] = queue.Queue()
        self.usable = True
        self._writer = threading.Thread(target=self._write, name="lattice-cache-writer", daemon=True)
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for file in sorted(self._folder.glob(f"*{SUFFIX}"), key=lambda file: file.stat().st_mtime):
                self._index(file)
            for left in self._folder.glob("*.tmp"):
                if time.time() - left.stat().st_mtime > ABANDONED_S:
                    left.unlink(missing_ok=True)
        except OSError as error:
            self._give_up(error)
        self._writer.start()

    @property
    def ready(self) -> bool:
        """Another entry may be saved."""
        return self.usable and self._work.qsize() < WAITING_FILES

    def better(self, ids: Sequence[int], tokens: int) -> Record | None:
        """The file that serves a longer prefix of `ids` than `tokens`."""
        record, length = self._tree.usable(self._tree.match(ids))
        return record if record is not None and record.written and length > tokens else None

    def load(self, record: Record) -> tuple[tuple[int, ...], Dump] | None:
        """The ids and the state in a file; None when it was dropped. Cost: as reading and hashing it."""
        try:
            loaded = read_whole(record.file, self._key)
            os.utime(record.file)
        except FileNotFoundError:  # it made room for another
            self._forget(record)
            return None
        except (OSError, Damaged) as error:
            self._drop(record, str(error))
            return None
        return loaded

    def save(self, ids: tuple[int, ...], trims: bool, dump: Dump) -> None:
        """Have a state written, in the place of those that it makes needless."""
        match = self._tree.match(ids)
        if match.depth == len(ids) and self._tree.known(match) is not None:
            return
        parts = compose(self._key, ids, trims, dump)
        nbytes = sum(map(len, parts)) + DIGEST_BYTES
        if nbytes > self._budget:
            return
        name = hashlib.sha256(array("I", ids).tobytes()).hexdigest()[:32]
        node = self._tree.place(ids)
        record = node.entry = Record(self._folder / f"{name}{SUFFIX}", nbytes, trims, node, written=False)
        self._work.put((record, parts))
        if trims:
            for place in list(node.path())[1:]:
                if place.entry is not None and place.entry.trims and place.entry.written:
                    self._forget(place.entry)

    def refuse(self, record: Record, why: str) -> None:
        """Its keeper cannot read what a file holds."""
        self._drop(record, why)

    def close(self, limit_s: float) -> None:
        """Let the writer finish what it has, for so long."""
        self._work.put(None)
        self._writer.join(limit_s)

    def _index(self, file: Path) -> None:
        """Take a file in by its header; its contents are looked at when they are needed."""
        try:
            ids, trims, nbytes = read_head(file, self._key)
        except (OSError, Damaged) as error:
            self._warn(file, str(error))
            file.unlink(missing_ok=True)
            return
        node = self._tree.place(ids)
        node.entry = Record(file, nbytes, trims, node)

    def _drop(self, record: Record, why: str) -> None:
        self._warn(record.file, why)
        self._forget(record)

    def _forget(self, record: Record) -> None:
        if record.node.entry is record:
            self._tree.take(record.node)
        try:
            record.file.unlink(missing_ok=True)
        except OSError as error:
            self._give_up(error)

    def _warn(self, file: Path, why: str) -> None:
        log.warning("the cached prefix `%s` is not used: %s", file, why)

    def _give_up(self, error: OSError) -> None:
        if self.usable:
            place = f" (`{error.filename}`)" if error.filename else ""
            log.warning("the prefix cache on disk is off: %s%s", error.strerror or error, place)
        self.usable = False

    # Below: the writer.

    def _write(self) -> None:
        while (work := self._work.get()) is not None:
            record, parts = work
            draft = record.file.with_suffix(f".{os.getpid()}.tmp")
            try:
                self._make_room(record.nbytes)
                write_whole(draft, parts)
                draft.replace(record.file)
                record.written = True
            except OSError as error:
                self._give_up(error)
                draft.unlink(missing_ok=True)
            del work, parts

    def _make_room(self, nbytes: int) -> None:
        """Delete what was not used longest, of any model. Its record is found out when it is asked for."""
        files = sorted((file.stat().st_mtime, file.stat().st_size, file) for file in _files(self._root))
        held = sum(size for _, size, _ in files)
        for _, size, file in files:
            if held + nbytes <= self._budget:
                return
            file.unlink(missing_ok=True)
            held -= size


def _files(root: Path) -> Iterator[Path]:
    return root.glob(f"*/*{SUFFIX}")
