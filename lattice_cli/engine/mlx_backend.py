"""MlxBackend: rows into tokens on an mlx network, by its batches (batch.py, prefill.py).

Knows rows and batches; knows no text and no queue. Longer than most files because a pass has rows that decode, rows
that begin and rows that read, and each ends in the same few fields.

Thread: worker
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lattice_cli.engine.backend import Emitted, PassFault, Progress
from lattice_cli.engine.pace import Pace, Rhythm
from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.engine.reply import Score
from lattice_cli.engine.row import Row

if TYPE_CHECKING:
    from lattice_cli.engine.lane import Lane, Portion


TIDY_S = 0.2  # without rows, until what is left for then is done


class MlxBackend:
    """A batch of rows on an mlx-lm model.

    One forward pass for all decoding rows and one chunk for the rows in prefill: the same pass where the network's
    state can (`DecoderState.joins`), else by turns. A row's random numbers come from (seed, choice, position), so its
    company changes nothing beyond float error, and nothing at all on the fused kernels. A chunk is at most
    `prefill_chunk` tokens over all rows, as `pace` has it. `before_step` is called before each step, on the worker
    thread. What rows have read is found and left in `prefix` (None: nothing is kept). Rows whose caches cannot share a
    batch decode one at a time.
    """

    def __init__(
        self,
        network: Any,
        max_rows: int,
        prefill_chunk: int,
        before_step: Callable[[], None] = lambda: None,
        prefix: PrefixCache | None = None,
        pace: Pace | None = None,
    ) -> None:
        from lattice_cli.engine.lane import mergeable
        from lattice_cli.model.network import make_caches

        self._before_step = before_step
        self._network = network
        self._max_rows = max_rows
        self._prefill_chunk = prefill_chunk
        self._pace = pace or Pace(prefill_chunk, fixed=True)
        self._rhythm = Rhythm(self._pace)
        self._began_s = 0.0  # the last step, or the last chunk without one
        self._chunk_next = False
        self._fresh_rows = 0  # that came since the last step, as those of one request do
        self._held_back = False  # no chunk came after the last step, for the sake of a first token
        self._prefix = prefix or PrefixCache()
        caches = make_caches(network)
        self._alone = not mergeable(caches)
        self._joins = bool(getattr(caches[0], "joins", False))
        self._rows: dict[str, Row] = {}
        self._under_way: list[Portion] = []  # read by the newest pass, which may run still
        self._ending: list[Lane] = []  # rows whose prompt ends with it
        self._told: list[Progress | Emitted] = []
        self._fault: PassFault | None = None  # of a pass that was waited for; the next `advance` raises it
        self.reset()
        self._unwire = _wire_memory()

    @property
    def submit_s(self) -> float | None:
        """What building and submitting the newest step took the host; see batch.py."""
        return self._decoding.submit_s

    def insert(self, row: Row) -> None:
        from lattice_cli.engine.lane import Lane
        from lattice_cli.engine.sampling import row_processors, row_sampler

        self._settle()
        sampler = row_sampler(row.job, position=len(row.emitted))
        processors = row_processors(row.job, row.budget(), row.end_ids)
        guide, turns = row.begin_guide(), row.job.prompt.cuts
        lane = Lane(row.job.id, row.ids, sampler, processors, [], guide, row.job.logprobs, turns=turns)
        if len(self._rows) > self._fresh_rows:
            self._pace.met(time.perf_counter())
        self._fresh_rows += 1
        self._rows[row.job.id] = row
        if row.choices is None:
            self._prompts.add(lane)
        else:
            self._prompts.share(lane, row.choices, row.job.prompt.ids)
        self._tell_cached(lane)

    def advance(self) -> list[Progress | Emitted]:
        self._settle()
        if self._fault is not None:
            raise self._fault from self._fault.cause
        if not len(self._prompts) and not len(self._decoding):
            return self._tidy()
        self._before_step()
        self._fresh_rows = 0
        if self._joins:
            return self._pass()
        if not self._chunk_next or not len(self._prompts):
            self._begin()
            self._decoding.add(self._ready(max(0, 1 - len(self._decoding)) if self._alone else None))
            if len(self._decoding):
                return self._step()
        self._chunk_next = False
        chosen = self._choose()
        self._rhythm.end(self._began_s, len(self._decoding), sum(portion.count for portion in chosen))
        return self._read(chosen)

    def _begin(self) -> None:
        self._began_s = time.perf_counter()
        self._rhythm.begin(self._began_s)

    def _ready(self, most: int | None = None) -> list[Lane]:
        """Rows that have read their prompts."""
        ready = self._prompts.take_finished(most)
        self._count(ready)
        return ready

    def _count(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            self._tell_cached(lane)
            self._prefix.count(lane.cached)

    def _step(self) -> list[Progress | Emitted]:
        """A token for each row; the pass that makes the next ones runs on meanwhile.

        Who has read its prompt hears its first token with the next step: every other time no chunk comes before it.
        """
        made, read = self._decoding.step()
        self._chunk_next = len(self._prompts) > 0 and (self._held_back or not read) and not self._pace.rests
        self._held_back = bool(read) and not self._held_back
        if not self._chunk_next:
            self._rhythm.end(self._began_s, len(self._decoding), 0)
        self._prefix.trust()
        return _outcomes(made, read)

    def _pass(self) -> list[Progress | Emitted]:
        """A token for each row, and a chunk of the prompts in the same pass, which runs on meanwhile."""
        self._begin()
        self._decoding.add(self._ready())
        decoding = len(self._decoding)
        chosen = self._choose() if len(self._prompts) else []
        tokens = sum(portion.count for portion in chosen)
        ending = self._prompts.take_ending(chosen)
        self._count(ending)
        self._decoding.add(ending)
        chunk = [portion for portion in chosen if portion.lane not in ending]
        self._rhythm.end(self._began_s, decoding, tokens)
        told, self._told = self._told, []
        if not len(self._decoding):
            return told + self._read(chunk)
        made, read = self._decoding.step(chunk)
        self._prefix.trust()
        self._under_way, self._ending = chunk, ending
        return told + _outcomes(made, [lane for lane in read if lane not in ending])

    def _settle(self) -> None:
        """Wait for the chunks that the newest pass reads. A fault is raised by the next `advance`, though all rows of
        the pass may have left until then.
        """
        import mlx.core as mx

        chunk, ending = self._under_way, self._ending
        self._under_way, self._ending = [], []
        if not chunk and not ending:
            return
        try:
            mx.eval(self._decoding.state, [portion.lane.caches[0].state for portion in chunk])
        except (RuntimeError, ValueError, MemoryError) as fault:  # what mlx makes of a C++ exception
            self._fault = PassFault(fault, frozenset([*self._decoding.job_ids, *self._prompts.job_ids(chunk)]))
            return
        self._decoding.keep(ending, self._leave)
        self._told += [Progress(lane.job_id, len(lane.ids), len(lane.ids)) for lane in ending]
        self._told += [Progress(lane.job_id, done, len(lane.ids)) for lane, done in self._prompts.settle(chunk)]
        self._prefix.trust()

    def _choose(self) -> list[Portion]:
        chunk = self._pace.chunk(
            len(self._decoding),
            full=len(self._rows) >= self._max_rows,
            now_s=self._began_s,
            waiting=len(self._prompts),
        )
        return self._prompts.choose(chunk, self._pace.row_tokens) if chunk else []

    def _read(self, chosen: list[Portion]) -> list[Progress | Emitted]:
        """One chunk over all rows in prefill."""
        read = self._prompts.read(chosen)
        self._prefix.trust()
        return [Progress(lane.job_id, done, len(lane.ids)) for lane, done in read]

    def _tidy(self) -> list[Progress | Emitted]:
        """What is left to do when there are no rows."""
        self._prefix.trust()
        if self._prefix.saves:
            self._prefix.save()
        return []

    def remove(self, job_ids: Sequence[str]) -> None:
        self._settle()
        gone, leave = set(job_ids), self._leave if self._prefix.on and self._fault is None else None
        self._told = [outcome for outcome in self._told if outcome.job_id not in gone]
        self._prompts.remove(gone, leave)
        self._decoding.remove(gone, leave)
        for job_id in job_ids:
            self._rows.pop(job_id, None)

    def _leave(self, job_id: str, ids: list[int], caches: list[Any]) -> None:
        """A row that goes without a fault leaves its state behind."""
        row = self._rows.get(job_id)
        if row is None or row.fault is None:
            self._prefix.keep(ids, caches)

    def _tell_cached(self, lane: Lane) -> None:
        row = self._rows.get(lane.job_id)
        if row is not None and not row.emitted:
            row.cached_tokens = min(lane.cached, row.prompt_tokens)

    def reset(self) -> None:
        from lattice_cli.engine.batch import DecodeBatch
        from lattice_cli.engine.prefill import PromptBatch
        from lattice_cli.model.network import make_caches

        self._prompts = PromptBatch(self._network, partial(make_caches, self._network), self._prefix)
        self._decoding = DecodeBatch(self._network)
        self._chunk_next = self._held_back = False
        self._under_way, self._ending, self._told, self._fault = [], [], [], None
        self._fresh_rows = 0
        self._rhythm.rest()
        self._rows.clear()
        self._prefix.distrust()

    def score(self, ids: tuple[int, ...], top: int) -> Iterator[list[Score]]:
        from lattice_cli.engine.logprobs import prompt_scores
        from lattice_cli.model.network import make_caches

        return prompt_scores(self._network, make_caches(self._network), ids, top, self._prefill_chunk)

    def ready_in_s(self) -> float | None:
        if len(self._prompts) or len(self._decoding) or self._fault is not None:
            return 0.0
        self._rhythm.rest()
        return TIDY_S if self._prefix.saves else None

    def close(self) -> None:
        self._unwire()
        if self._fault is None:
            self._prefix.trust()
        self.reset()
        self._prefix.close()
        self._network = None


def _outcomes(made: list[tuple[Lane, int, Score | None]], read: list[Lane]) -> list[Progress | Emitted]:
    outcomes: list[Progress | Emitted] = [Emitted(lane.job_id, token, score) for lane, token, score in made]
    return outcomes + [Progress(lane.job_id, len(lane.ids), len(lane.ids)) for lane in read]


def _wire_memory() -> Callable[[], None]:
    """Let a Mac keep the weights in memory as far as it recommends; returns what undoes that."""
    import mlx.core as mx

    limit = mx.device_info().get("max_recommended_working_set_size")
    if not limit:
        return lambda: None
    before = mx.set_wired_limit(int(limit))

    def undo() -> None:
        mx.synchronize()
        mx.set_wired_limit(before)

    return undo
