"""Prompts on their way into caches: what the prefix cache has of them, rows that read alone, and rows that wait while
another reads what they begin with.

Works with any caches that have mlx-lm 0.32's batch protocol (merge, prepare, filter). Caches whose rows keep their
own length (kernels/state.py) read several prompts in one pass; others read one at a time, because they would pad the
short ones to the long. Knows tensors and slots; knows no text and no queue.

Thread: worker
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from lattice_cli.engine.lane import Lane, Leave, Portion, Stem, merged
from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.engine.prefix_tree import common
from lattice_cli.engine.row import Choices
from lattice_cli.kernels.state import DecoderState

PATIENCE = 3
# PERF: what a pass leaves behind is as large as its chunk and serves the next one. On a GPU taking it anew costs 1 to
# 2 ms of a chunk's 10; on a CPU next to nothing, and memory is what others want.
KEPT_BYTES = (0, 1 << 30)  # of mlx's buffers between chunks: on a CPU, on a GPU
FOLLOWED_TOKENS = 32  # so many more must come of waiting for another row's reading


class PromptBatch:
    """Rows that read their prompts, a chunk at a time over all of them, in passes of their own or in those of the rows
    that decode. `fresh` makes the empty caches of one row."""

    def __init__(self, network: Any, fresh: Callable[[], list[Any]], prefix: PrefixCache) -> None:
        self._network = network
        self._fresh = fresh
        self._prefix = prefix
        self._passes = 0  # chunks of late for which somebody was passed over
        self._lanes: list[Lane] = []  # those of unread stems among them
        self._stems: dict[Choices, Stem] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, lane: Lane) -> None:
        """Read what is not known of a row's prompt."""
        self._begin(lane)
        self._lanes.append(lane)

    def share(self, lane: Lane, choices: Choices, prompt: Sequence[int]) -> None:
        """Read a row's prompt once for all of `choices`; what its lane has beyond the prompt it reads alone."""
        choices.waiting.add(lane.job_id)
        stem = self._stems.get(choices)
        if stem is None:
            reader = Lane("", list(prompt), lane.sampler, [], [], turns=lane.turns)
            stem = self._stems[choices] = Stem(choices, reader)
            self.add(reader)
        stem.waiting.append(lane)
        lane.cached = stem.lane.cached
        if stem.read:
            self._lanes += stem.branch()

    def choose(self, chunk: int, row_tokens: int | None = None) -> list[Portion]:
        """What the next pass should read of which rows, at most `row_tokens` of each. The shortest rest comes first;
        after `PATIENCE` such chunks one goes to who has waited longest, so that long prompts get on too. Where a prompt
        ends with this chunk, no other is begun for the sake of a full one: somebody waits for its first token. Nor is
        one begun for a piece of what it could have where rows are padded to the longest.
        """
        chosen: list[Portion] = []
        room = chunk
        lanes = [lane for lane in self._lanes if lane.remaining > 0 and lane.leader is None]
        turn = self._passes == PATIENCE
        for lane in sorted(lanes, key=lambda lane: (-lane.waited if turn else 0, self._rest(lane))):
            piece = min(lane.remaining, self._to_cut(lane), row_tokens or chunk)
            count = min(room, piece)
            ends = any(one.count == one.lane.remaining for one in chosen)
            waits = chosen and (not _ragged(lane) or (count < piece and not _joined(lane)))
            if count == 0 or waits or (ends and count < lane.remaining):
                lane.waited += 1
                continue
            chosen.append(Portion(lane, count))
            room -= count
        if chosen:
            self._passes = 0 if turn or len(chosen) == len(lanes) else self._passes + 1
        return chosen

    def read(self, chosen: Sequence[Portion]) -> list[tuple[Lane, int]]:
        """Read this in a pass of its own: the rows it was for, and how much of each is read."""
        if not chosen:
            return []
        caches = chosen[0].lane.caches
        if len(chosen) == 1:
            ids = mx.array([chosen[0].ids])
        else:
            caches = merged([portion.lane.caches for portion in chosen])
            counts = [portion.count for portion in chosen]
            if caches[0].joins:
                caches[0].join(counts, 0)
                ids = mx.array([[token for portion in chosen for token in portion.ids]])
            else:
                caches[0].prepare(lengths=counts)
                ids = mx.array([portion.ids + [0] * (max(counts) - portion.count) for portion in chosen])
        self._network(ids, cache=caches)
        mx.eval([cache.state for cache in caches])
        return self.settle(chosen)

    def settle(self, chosen: Sequence[Portion]) -> list[tuple[Lane, int]]:
        """A pass has read this, and its caches are evaluated."""
        if mx.get_cache_memory() > KEPT_BYTES[mx.default_device().type == mx.DeviceType.gpu]:
            mx.clear_cache()
        for lane, count in [(portion.lane, portion.count) for portion in chosen]:
            lane.done += count
            lane.waited = 0
            if lane.remaining == 0 or lane.done in lane.cuts:
                self._prefix.keep(lane.ids[: lane.done], lane.caches)
        followers = self._go_on()
        read = [portion.lane for portion in chosen]
        return [(row, lane.done) for lane in (*read, *followers) for row in self._readers(lane)]

    def job_ids(self, chosen: Sequence[Portion]) -> list[str]:
        """The rows whose prompts these are."""
        return [row.job_id for portion in chosen for row in self._readers(portion.lane)]

    def _readers(self, lane: Lane) -> list[Lane]:
        """The rows that a lane reads for: itself, or those that wait for a stem."""
        return next((stem.waiting for stem in self._stems.values() if stem.lane is lane and not stem.read), [lane])

    def take_ending(self, chosen: Sequence[Portion]) -> list[Lane]:
        """Of those chosen, the rows whose prompt ends here and may be decoded on in the same pass; they leave this
        batch. Not what several rows wait for, nor a state that could not be kept without its last token.
        """
        stems = [stem.lane for stem in self._stems.values()]
        ending = [
            portion.lane
            for portion in chosen
            if portion.count == portion.lane.remaining
            and portion.lane not in stems
            and (not self._prefix.on or self._prefix.trims(portion.lane.caches))
        ]
        self._lanes = [lane for lane in self._lanes if lane not in ending]
        return ending

    def take_finished(self, most: int | None = None) -> list[Lane]:
        """The lanes with nothing left to read but their last token, at most so many; they leave this batch."""
        for stem in self._stems.values():
            if not stem.read and stem.lane.remaining == 0:
                stem.read = True
                self._lanes.remove(stem.lane)
                for lane in stem.branch():
                    self._lanes.append(lane)
        self._stems = {key: stem for key, stem in self._stems.items() if stem.waiting or stem.choices.waiting}
        finished = [lane for lane in self._lanes if lane.remaining == 0][:most]
        self._lanes = [lane for lane in self._lanes if lane not in finished]
        return finished

    def remove(self, job_ids: set[str], leave: Leave | None) -> None:
        """Forget rows; the others go on. A prompt that nobody waits for any more is not read on. `leave` gets what each
        had read.
        """
        gone = [lane for lane in self._lanes if lane.job_id in job_ids]
        for key, stem in list(self._stems.items()):
            stem.waiting = [lane for lane in stem.waiting if lane.job_id not in job_ids]
            stem.choices.waiting -= job_ids
            if not stem.waiting and not (stem.read and stem.choices.waiting):
                del self._stems[key]
                gone += [lane for lane in self._lanes if lane is stem.lane]
        self._lanes = [lane for lane in self._lanes if lane not in gone]
        for lane in gone:
            if leave is not None and lane.done > lane.cached:
                leave(lane.job_id, lane.ids[: lane.done], lane.caches)
        for lane in self._lanes:
            if lane.leader in gone:
                self._begin(lane)

    def _begin(self, lane: Lane) -> None:
        """Give a lane what is known of its ids; it reads the rest, or waits for who reads it already."""
        lane.leader = None
        others = [other for other in self._lanes if other is not lane] if self._prefix.on else []
        for other in others:  # they may be past the place where both part
            shared = common(lane.ids[:-1], other.ids[: other.done])
            if shared >= other.cached + FOLLOWED_TOKENS and (shared == other.done or self._prefix.trims(other.caches)):
                self._prefix.keep(other.ids[: other.done], other.caches)
        found = self._prefix.find(lane.ids)
        if not lane.caches or found.tokens > lane.done:  # one that waited has what it had
            lane.caches = found.caches if found.caches is not None else self._fresh()
            lane.done = lane.cached = found.tokens
        lane.cuts = self._prefix.cuts(lane.turns, len(lane.ids), lane.done, found.known)
        for other in others:
            if other.leader is lane and other.follows_to > lane.done:
                _add_cut(lane, other.follows_to)
            self._follow(lane, other)
        leader = lane.leader
        while leader is not None:
            _add_cut(leader, lane.follows_to)
            leader = leader.leader

    def _follow(self, lane: Lane, other: Lane) -> None:
        """Let a lane wait where another is on its way to more of its ids than it has."""
        shared = min(common(lane.ids[:-1], other.ids), len(other.ids) - 1)
        best = lane.follows_to if lane.leader is not None else lane.done
        ahead, chain = shared - best, other
        while chain.leader is not None and chain is not lane:  # nobody may wait for itself
            chain = chain.leader
        if ahead >= FOLLOWED_TOKENS and lane.done <= other.done < shared and chain is not lane:
            lane.leader, lane.follows_to = other, shared

    def _go_on(self) -> list[Lane]:
        """Let those go on whose leaders have read what they waited for; which these are."""
        gone_on: list[Lane] = []
        while ready := [each for each in self._lanes if each.leader and each.leader.done >= each.follows_to]:
            for lane in ready:
                self._begin(lane)
            gone_on += [lane for lane in ready if lane.done > 0]
        return gone_on

    def _to_cut(self, lane: Lane) -> int:
        """Tokens that may be read before the lane's next cut."""
        at = bisect_right(lane.cuts, lane.done)
        return lane.cuts[at] - lane.done if at < len(lane.cuts) else lane.remaining

    def _rest(self, lane: Lane) -> int:
        """Tokens to read until this lane, or one that waits for it, is done."""
        led = [other for other in self._lanes if other.leader is lane]
        return min([lane.remaining, *(len(other.ids) - 1 - lane.done for other in led)])


def _add_cut(lane: Lane, cut: int) -> None:
    if cut > lane.done and cut not in lane.cuts:
        insort(lane.cuts, cut)


def _ragged(lane: Lane) -> bool:
    return isinstance(lane.caches[0], DecoderState)


def _joined(lane: Lane) -> bool:
    return bool(getattr(lane.caches[0], "joins", False))
