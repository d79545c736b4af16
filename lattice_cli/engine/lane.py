"""A row among the batches: what it has read and fed, and its caches, alone or out of a batch's.

Works with any caches that have mlx-lm 0.32's batch protocol; those that lack it cannot share a batch. Knows tensors
and slots; knows no text and no queue.

Thread: worker
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from lattice_cli.engine.guided import RowGuide
from lattice_cli.engine.row import Choices
from lattice_cli.engine.sampling import Processor, Sampler

# Takes what a row leaves behind: its job's id, the ids that were fed, and caches that hold exactly these.
Leave = Callable[[str, list[int], list[Any]], None]


@dataclass(eq=False, slots=True)
class Lane:
    """One row: its ids, how its tokens are drawn, and how much of its prompt is in its cache. While it decodes, `ids`
    are what was fed.
    """

    job_id: str
    ids: list[int]
    sampler: Sampler
    processors: list[Processor]
    caches: list[Any]  # of this row alone, until it decodes
    guide: RowGuide | None = None
    top: int | None = None  # how many of the likeliest tokens to tell beside each; None: no scores at all
    done: int = 0
    cached: int = 0  # ids that nobody read for it
    turns: tuple[int, ...] = ()  # where in its prompt turns begin
    cuts: list[int] = field(default_factory=list)  # where reading stops and its state is kept
    leader: Lane | None = None  # reads the first `follows_to` ids for it
    follows_to: int = 0
    waited: int = 0  # chunks read by others meanwhile
    context: mx.array | None = None  # (ids,): all that were fed so far, of decoding rows with processors

    @property
    def remaining(self) -> int:
        """Tokens to read before the last one, which the first step of decoding takes."""
        return len(self.ids) - 1 - self.done


@dataclass(frozen=True, slots=True)
class Portion:
    """`count` tokens of a row's prompt, which one pass reads."""

    lane: Lane
    count: int

    @property
    def ids(self) -> list[int]:
        return self.lane.ids[self.lane.done : self.lane.done + self.count]


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
            lane.done, lane.cached = self.lane.done, self.lane.cached
        return ready


def mergeable(caches: Sequence[Any]) -> bool:
    """Whether rows with such caches can share a batch (mlx-lm's quantized and chunked ones cannot)."""
    parts = [one for cache in caches for one in (getattr(cache, "caches", None) or (cache,))]
    return all(hasattr(part, "merge") for part in parts)


def split(caches: list[Any], index: int, rows: int) -> list[Any]:
    """One row's caches out of a batch's."""
    if rows == 1 and not all(hasattr(cache, "extract") for cache in caches):
        return caches
    return [cache.extract(index) for cache in caches]


def merged(caches: list[list[Any]]) -> list[Any]:
    """One batch's caches, layer by layer, of several rows'."""
    return [layers[0].merge(list(layers)) for layers in zip(*caches, strict=True)]
