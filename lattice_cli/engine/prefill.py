"""Prompts on their way into caches: rows that read alone, and rows that share one reading of their prompt.

Works with any caches that have mlx-lm 0.32's batch protocol (merge, prepare, filter). Caches whose rows keep their
own length (kernels/state.py) read several prompts in one pass; others read one at a time, because they would pad the
short ones to the long. Knows tensors and slots; knows no text and no queue.

Thread: worker
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from lattice_cli.engine.batch import Lane, merged
from lattice_cli.engine.row import Choices
from lattice_cli.kernels.state import DecoderState


@dataclass(eq=False, slots=True)
class Stem:
    """One prompt of several rows. `lane` reads all of it but its last token; then every row gets a copy of its
    caches, those that come later too: n choices may be more than there are slots.
    """

    choices: Choices
    lane: Lane
    read: bool = False
    waiting: list[Lane] = field(default_factory=list)

    def branch(self) -> list[Lane]:
        """The waiting lanes, each with the prompt in a cache of its own; the last one that will come takes this
        stem's.
        """
        ready, self.waiting = self.waiting, []
        for lane in ready:
            self.choices.waiting.discard(lane.job_id)
            last = lane is ready[-1] and not self.choices.waiting
            lane.caches = self.lane.caches if last else copy.deepcopy(self.lane.caches)
            lane.done = self.lane.done
        return ready


class PromptBatch:
    """Rows that read their prompts, a chunk at a time over all of them. `fresh` makes the empty caches of one row."""

    def __init__(self, network: Any, fresh: Callable[[], list[Any]]) -> None:
        self._network = network
        self._fresh = fresh
        self._lanes: list[Lane] = []  # those of unread stems among them
        self._stems: dict[Choices, Stem] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, lane: Lane) -> None:
        """Read a row's prompt for it alone."""
        lane.caches = self._fresh()
        self._lanes.append(lane)

    def share(self, lane: Lane, choices: Choices, prompt: Sequence[int]) -> None:
        """Read a row's prompt once for all of `choices`; what its lane has beyond the prompt it reads alone."""
        choices.waiting.add(lane.job_id)
        stem = self._stems.get(choices)
        if stem is None:
            reader = Lane("", list(prompt), lane.sampler, [], self._fresh())
            stem = self._stems[choices] = Stem(choices, reader)
            self._lanes.append(reader)
        stem.waiting.append(lane)
        if stem.read:
            self._lanes += stem.branch()

    def read(self, chunk: int) -> list[tuple[Lane, int]]:
        """Read one chunk: the rows it was for, and how much of each is read. The shortest rest comes first, and
        waiting shortens it.
        """
        chosen: list[tuple[Lane, int]] = []
        room = chunk
        for lane in sorted(self._lanes, key=lambda lane: lane.remaining - lane.waited * chunk // 4):
            if room == 0 or lane.remaining == 0 or (chosen and not _ragged(lane)):
                lane.waited += 1
                continue
            count = min(room, lane.remaining)
            chosen.append((lane, count))
            room -= count
        if not chosen:
            return []
        longest = max(count for _, count in chosen)
        rows = [lane.ids[lane.done : lane.done + count] + [0] * (longest - count) for lane, count in chosen]
        caches = chosen[0][0].caches
        if len(chosen) > 1:
            caches = merged([lane.caches for lane, _ in chosen])
            for cache in caches:
                cache.prepare(lengths=[count for _, count in chosen])
        self._network(mx.array(rows), cache=caches)
        mx.eval([cache.state for cache in caches])
        mx.clear_cache()
        for lane, count in chosen:
            lane.done += count
            lane.waited = 0
        readers = {id(stem.lane): stem.waiting for stem in self._stems.values() if not stem.read}
        return [(row, lane.done) for lane, _ in chosen for row in readers.get(id(lane), [lane])]

    def take_finished(self) -> list[Lane]:
        """The lanes with nothing left to read but their last token; they leave this batch."""
        for stem in self._stems.values():
            if not stem.read and stem.lane.remaining == 0:
                stem.read = True
                self._lanes.remove(stem.lane)
                self._lanes += stem.branch()
        self._stems = {key: stem for key, stem in self._stems.items() if stem.waiting or stem.choices.waiting}
        finished = [lane for lane in self._lanes if lane.remaining == 0]
        self._lanes = [lane for lane in self._lanes if lane.remaining > 0]
        return finished

    def remove(self, job_ids: set[str]) -> None:
        """Forget rows; the others go on. A prompt that nobody waits for any more is not read on."""
        for key, stem in list(self._stems.items()):
            stem.waiting = [lane for lane in stem.waiting if lane.job_id not in job_ids]
            stem.choices.waiting -= job_ids
            if not stem.waiting and not (stem.read and stem.choices.waiting):
                del self._stems[key]
                self._lanes = [lane for lane in self._lanes if lane is not stem.lane]
        self._lanes = [lane for lane in self._lanes if lane.job_id not in job_ids]


def _ragged(lane: Lane) -> bool:
    return isinstance(lane.caches[0], DecoderState)
