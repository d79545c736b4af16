"""The rows that decode together on a network (those that read their prompts are in prefill.py).

Where the network takes rows of any lengths in one pass (`DecoderState.joins`), a pass of theirs has chunks of other
rows' prompts, too, and the end of its prompt for a row that begins: the weights are read once for all.

Works with any caches that have mlx-lm 0.32's batch protocol (merge, extend, filter). Knows tensors and slots; knows
no text and no queue.

Thread: worker
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import mlx.core as mx
import numpy as np

from lattice_cli.engine.lane import Lane, Leave, Portion, mergeable, merged, split
from lattice_cli.engine.logprobs import Scores
from lattice_cli.engine.reply import Score
from lattice_cli.engine.vocabulary import Mask

CLEAR_EVERY_STEPS = 512  # mlx's buffer cache grows without end else


class DecodeBatch:
    """Rows that make a token a step. A step's tokens are handed out when the next one is already running."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._lanes: list[Lane] = []
        self._caches: list[Any] = []
        self._inputs: mx.array | None = None  # (rows,): fed in the next step
        self._fresh: set[str] = set()  # rows whose input is the end of their prompt
        self._scores: Scores | None = None  # of the tokens in `_inputs`
        self._steps = 0
        self.submit_s: float | None = None  # to build and submit the newest pass; None where the host waited in between

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def job_ids(self) -> list[str]:
        return [lane.job_id for lane in self._lanes]

    @property
    def state(self) -> list[Any]:
        """What must be evaluated for all passes to have run."""
        return [cache.state for cache in self._caches]

    def add(self, lanes: Sequence[Lane]) -> None:
        """Take in rows that have read all but the last token of their prompts; where passes are joined, what is left
        may be more.
        """
        if not lanes:
            return
        last = mx.array([lane.ids[-1] for lane in lanes], dtype=mx.uint32)
        theirs = merged([lane.caches for lane in lanes]) if mergeable(lanes[0].caches) else lanes[0].caches
        for lane in lanes:
            lane.caches = []
            lane.context = mx.array(lane.ids[:-1], dtype=mx.uint32) if lane.processors else None
        if self._lanes:
            for own, new in zip(self._caches, theirs, strict=True):
                own.extend(new)
        else:
            self._caches = theirs
        self._inputs = last if self._inputs is None else mx.concatenate([self._inputs, last])
        self._lanes += lanes
        self._fresh |= {lane.job_id for lane in lanes}

    def step(self, chunk: Sequence[Portion] = ()) -> tuple[list[tuple[Lane, int, Score | None]], list[Lane]]:
        """One forward pass: (row, token, score) of the pass before, and the rows whose prompt ended with this one.
        `chunk` is read in the same pass; what it was can be evaluated by its caches.

        Where a row has a grammar, the pass runs while the host waits for the tokens before it, reads them and fills
        the masks; only the draw comes after.
        """
        assert self._inputs is not None
        inputs, began_s = self._inputs, time.perf_counter()
        logits = self._forward(inputs, chunk)
        masks: list[Mask | None] = [None] * len(self._lanes)
        guided = any(lane.guide for lane in self._lanes)
        if guided:
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            masks = self._follow(inputs.tolist())  # type: ignore[arg-type]
        self._inputs = self._draw(logits, inputs, masks)
        before, self._scores = self._scores, self._score(logits, self._inputs)
        contexts = [lane.context for lane in self._lanes if lane.context is not None]
        mx.async_eval(self._inputs, contexts, self._scores.arrays if self._scores else [])  # type: ignore[no-untyped-call]
        self.submit_s = None if guided or chunk else time.perf_counter() - began_s
        fed: list[int] = inputs.tolist()  # type: ignore[assignment]
        scores = before.read() if before else {}
        self._steps += 1
        if self._steps % CLEAR_EVERY_STEPS == 0:
            mx.clear_cache()
        pairs = list(zip(self._lanes, fed, strict=True))
        made = [(lane, token, scores.get(lane.job_id)) for lane, token in pairs if lane.job_id not in self._fresh]
        for lane, token, _ in made:
            lane.ids.append(token)
        read = [lane for lane in self._lanes if lane.job_id in self._fresh]
        self._fresh.clear()
        return made, read

    def _forward(self, inputs: mx.array, chunk: Sequence[Portion]) -> mx.array:
        """Logits (rows, vocabulary) after `inputs`, (rows,)."""
        tails = [lane.ids[lane.done : -1] if lane.job_id in self._fresh else [] for lane in self._lanes]
        if not chunk and not any(tails):
            return self._network(inputs[:, None], cache=self._caches)[:, -1, :]  # type: ignore[no-any-return]
        parts = [[*tail, 0] for tail in tails] + [portion.ids for portion in chunk]
        counts = [len(part) for part in parts]
        ids = mx.array([token for part in parts for token in part], dtype=mx.uint32)
        ends = list(accumulate(counts[: len(tails)]))
        ids[mx.array(ends) - 1] = inputs
        (own,) = self._caches
        caches = [own, *(portion.lane.caches[0] for portion in chunk)]
        joined = own.merge(caches)
        joined.join(counts, len(tails))
        logits = self._network(ids[None], cache=[joined])[:, -1, :]
        for cache in caches:
            cache.follow(joined)
        for lane in self._lanes:
            lane.done = max(lane.done, len(lane.ids) - 1)
        return logits  # type: ignore[no-any-return]

    def keep(self, lanes: Sequence[Lane], leave: Leave) -> None:
        """Give `leave` what such rows of this batch have read by now."""
        for index, lane in enumerate(self._lanes):
            if lane in lanes:
                leave(lane.job_id, lane.ids, split(self._caches, index, len(self._lanes)))

    def _follow(self, fed: list[int]) -> list[Mask | None]:
        """Tell the grammars the newest tokens; what each of them allows next."""
        masks: list[Mask | None] = []
        for lane, token in zip(self._lanes, fed, strict=True):
            if lane.guide is not None and lane.job_id not in self._fresh:
                lane.guide.advance(token)
            masks.append(lane.guide.allowed() if lane.guide is not None else None)
        return masks

    def _score(self, logits: mx.array, drawn: mx.array) -> Scores | None:
        asked = [(row, lane.job_id, lane.top) for row, lane in enumerate(self._lanes) if lane.top is not None]
        if not asked:
            return None
        rows, keys, tops = zip(*asked, strict=True)
        if len(rows) < len(self._lanes):
            logits, drawn = logits[mx.array(rows)], drawn[mx.array(rows)]
        return Scores(keys, logits, drawn, tops)

    def remove(self, job_ids: set[str], leave: Leave | None) -> None:
        """Forget rows; the others go on. `leave` gets each that was in a step."""
        for index, lane in enumerate(self._lanes):
            if leave is not None and lane.job_id in job_ids:
                leave(lane.job_id, lane.ids, split(self._caches, index, len(self._lanes)))
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

    def _draw(self, logits: mx.array, inputs: mx.array, masks: list[Mask | None]) -> mx.array:
        """Ids (rows,) of the next step. Rows that draw alike are drawn in one call."""
        samplers = [lane.sampler for lane in self._lanes]
        processed = any(lane.processors for lane in self._lanes)
        if not processed and all(sampler is samplers[0] for sampler in samplers):
            return samplers[0](masked(logits, masks))
        drawn = []
        for row, lane in enumerate(self._lanes):
            own = logits[row : row + 1]
            if lane.context is not None:
                lane.context = mx.concatenate([lane.context, inputs[row : row + 1]])
                for process in lane.processors:
                    own = process(lane.context, own)
            drawn.append(lane.sampler(masked(own, masks[row : row + 1])))
        return mx.concatenate(drawn)


def masked(logits: mx.array, masks: list[Mask | None]) -> mx.array:
    """Logits (rows, vocabulary) with nothing but what the masks allow; ids beyond a mask are not allowed.

    PERF: numpy spreads the bits, and they are applied as one `where`: two passes over a byte a token.
    """
    if all(mask is None for mask in masks):
        return logits
    width = logits.shape[-1]
    allowed = np.ones((len(masks), width), dtype=np.bool_)
    for row, mask in enumerate(masks):
        if mask is not None:
            allowed[row, : len(mask)] = mask[:width]
            allowed[row, len(mask) :] = False
    return mx.where(mx.array(allowed), logits, mx.array(-mx.inf, dtype=logits.dtype))  # (rows, vocabulary)
