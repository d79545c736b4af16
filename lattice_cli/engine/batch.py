"""Batches of rows on a network: some read their prompts, the others decode together.

Works with any caches that have mlx-lm 0.32's batch protocol (merge, extend, filter, prepare, finalize). Caches
whose rows keep their own length (kernels/state.py) read several prompts in one pass; others read one at a time,
because they would pad the short ones to the long. Knows tensors and slots; knows no text and no queue.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from lattice_cli.engine.sampling import Processor, Sampler
from lattice_cli.kernels.state import DecoderState

CLEAR_EVERY_STEPS = 512  # mlx's buffer cache grows without end else


@dataclass(slots=True)
class Lane:
    """One row: its ids, how its tokens are drawn, and how much of its prompt is in its cache."""

    job_id: str
    ids: list[int]
    sampler: Sampler
    processors: list[Processor]
    caches: list[Any]  # of this row alone, until it decodes
    done: int = 0
    waited: int = 0  # chunks read by others meanwhile
    context: mx.array | None = None  # (ids,): all that were fed so far, of decoding rows with processors

    @property
    def remaining(self) -> int:
        """Tokens to read before the last one, which the first step of decoding takes."""
        return len(self.ids) - 1 - self.done


class PromptBatch:
    """Rows that read their prompts, `chunk` tokens at a time over all of them."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.lanes: list[Lane] = []

    def read(self, chunk: int) -> list[Lane]:
        """Read one chunk; the lanes that were read. The shortest rest comes first, and waiting shortens it."""
        chosen: list[tuple[Lane, int]] = []
        room = chunk
        for lane in sorted(self.lanes, key=lambda lane: lane.remaining - lane.waited * chunk // 4):
            if room == 0 or (chosen and not _ragged(lane)):
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
            caches = _merged([lane.caches for lane, _ in chosen])
            for cache in caches:
                cache.prepare(lengths=[count for _, count in chosen])
        self._network(mx.array(rows), cache=caches)
        mx.eval([cache.state for cache in caches])
        mx.clear_cache()
        for lane, count in chosen:
            lane.done += count
            lane.waited = 0
        return [lane for lane, _ in chosen]

    def take_finished(self) -> list[Lane]:
        """The lanes with nothing left to read but their last token; they leave this batch."""
        finished = [lane for lane in self.lanes if lane.remaining == 0]
        self.lanes = [lane for lane in self.lanes if lane.remaining > 0]
        return finished


class DecodeBatch:
    """Rows that make a token a step. A step's tokens are handed out when the next one is already running."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._lanes: list[Lane] = []
        self._caches: list[Any] = []
        self._inputs: mx.array | None = None  # (rows,): fed in the next step
        self._fresh: set[str] = set()  # rows whose input is the end of their prompt
        self._steps = 0

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, lanes: Sequence[Lane]) -> None:
        """Take in rows that have read all but the last token of their prompts."""
        if not lanes:
            return
        last = mx.array([lane.ids[-1] for lane in lanes], dtype=mx.uint32)
        merged = _merged([lane.caches for lane in lanes])
        for lane in lanes:
            lane.caches = []
            lane.context = mx.array(lane.ids[:-1], dtype=mx.uint32) if lane.processors else None
        if self._lanes:
            for mine, theirs in zip(self._caches, merged, strict=True):
                mine.extend(theirs)
        else:
            self._caches = merged
        self._inputs = last if self._inputs is None else mx.concatenate([self._inputs, last])
        self._lanes += lanes
        self._fresh |= {lane.job_id for lane in lanes}

    def step(self) -> tuple[list[tuple[Lane, int]], list[Lane]]:
        """One forward pass: (row, token) of the pass before, and the rows whose prompt ended with this one."""
        assert self._inputs is not None
        inputs = self._inputs
        logits = self._network(inputs[:, None], cache=self._caches)[:, -1, :]  # (rows, vocabulary)
        self._inputs = self._draw(logits, inputs)
        contexts = [lane.context for lane in self._lanes if lane.context is not None]
        mx.async_eval(self._inputs, contexts)  # type: ignore[no-untyped-call]
        fed: list[int] = inputs.tolist()  # type: ignore[assignment]
        self._steps += 1
        if self._steps % CLEAR_EVERY_STEPS == 0:
            mx.clear_cache()
        made = [(lane, token) for lane, token in zip(self._lanes, fed, strict=True) if lane.job_id not in self._fresh]
        read = [lane for lane in self._lanes if lane.job_id in self._fresh]
        self._fresh.clear()
        return made, read

    def remove(self, job_ids: set[str]) -> None:
        """Forget rows; the others go on."""
        keep = [index for index, lane in enumerate(self._lanes) if lane.job_id not in job_ids]
        if len(keep) == len(self._lanes):
            return
        self._lanes = [self._lanes[index] for index in keep]
        self._fresh -= job_ids
        if not keep:
            self._caches, self._inputs = [], None
            return
        for cache in self._caches:
            cache.filter(keep)
        assert self._inputs is not None
        self._inputs = self._inputs[mx.array(keep)]

    def _draw(self, logits: mx.array, inputs: mx.array) -> mx.array:
        """Ids (rows,) of the next step. Rows that draw alike are drawn in one call."""
        samplers = [lane.sampler for lane in self._lanes]
        processed = any(lane.processors for lane in self._lanes)
        if not processed and all(sampler is samplers[0] for sampler in samplers):
            return samplers[0](logits)
        drawn = []
        for row, lane in enumerate(self._lanes):
            own = logits[row : row + 1]
            if lane.context is not None:
                lane.context = mx.concatenate([lane.context, inputs[row : row + 1]])
                for process in lane.processors:
                    own = process(lane.context, own)
            drawn.append(lane.sampler(own))
        return mx.concatenate(drawn)


def _ragged(lane: Lane) -> bool:
    return isinstance(lane.caches[0], DecoderState)


def _merged(caches: list[list[Any]]) -> list[Any]:
    """One batch's caches, layer by layer, of several rows'."""
    return [layers[0].merge(list(layers)) for layers in zip(*caches, strict=True)]
