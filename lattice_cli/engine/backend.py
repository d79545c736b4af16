"""Backend: what turns rows into tokens. MlxBackend is mlx-lm's BatchGenerator behind that protocol.

The only file that imports mlx_lm.generate. Knows tensors and slots; knows no text and no queue.
What BatchGenerator (mlx-lm 0.32) does and does not promise is told in docs/house.md, section 4.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lattice_cli.engine.row import Row


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` tokens of a row are in its cache."""

    job_id: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Emitted:
    """One token of a row, end tokens included."""

    job_id: str
    token_id: int


class Backend(Protocol):
    """Rows in, tokens out. Any exception from `insert` or `advance` makes the whole backend state void:
    call `reset` and insert the rows again.
    """

    def insert(self, row: Row) -> None:
        """Take a row in; its prompt and emitted ids are read by the coming `advance` calls. Cheap."""

    def advance(self) -> list[Progress | Emitted]:
        """One step: a token for each decoding row, then one chunk of prompt over all rows in prefill."""

    def remove(self, job_ids: Sequence[str]) -> None:
        """Forget rows at once; the others go on undisturbed. Unknown ids are ignored."""

    def reset(self) -> None:
        """Forget all rows and any state a fault may have spoilt."""

    def ready_in_s(self) -> float | None:
        """Seconds until `advance` has something to do: 0 is now, None is not before a row comes or goes."""

    def close(self) -> None:
        """Let go of the model; no other call follows."""


class MlxBackend:
    """A batch of rows on an mlx-lm model.

    One forward pass a step for all decoding rows, and one chunk for the rows in prefill. A row's random
    numbers come from (seed, choice, position), so its company changes nothing beyond float error. A chunk is
    `prefill_chunk` tokens over all rows. `before_step` is called before each step, on the worker thread.
    """

    def __init__(
        self, network: Any, max_rows: int, prefill_chunk: int, before_step: Callable[[], None] = lambda: None
    ) -> None:
        self._before_step = before_step
        self._network = network
        self._max_rows = max_rows
        self._prefill_chunk = prefill_chunk
        self._uids: dict[int, str] = {}
        self._prefilling: set[str] = set()
        self._generator = self._new_generator()

    def _new_generator(self) -> Any:
        from lattice_cli.model.upstream import file_limit_kept

        with file_limit_kept():
            from mlx_lm.generate import BatchGenerator
        return BatchGenerator(
            self._network,
            completion_batch_size=self._max_rows,
            prefill_batch_size=self._max_rows,
            prefill_step_size=self._prefill_chunk,
        )

    def insert(self, row: Row) -> None:
        from lattice_cli.engine.sampling import row_processors, row_sampler

        # NOTE: ends and limits are the row's business, so the generator gets no stop and no limit of its own.
        (uid,) = self._generator.insert(
            [row.ids],
            max_tokens=[1 << 30],
            all_tokens=[[]],
            samplers=[row_sampler(row.job, position=len(row.emitted))],
            logits_processors=[row_processors(row.job, row.budget())],
        )
        self._uids[uid] = row.job.id
        self._prefilling.add(row.job.id)

    def advance(self) -> list[Progress | Emitted]:
        self._before_step()
        # PERF: a chunk is rows x step padded to the longest, so the step shrinks as rows join (house.md 4.3).
        step = max(1, self._prefill_chunk // max(1, len(self._prefilling)))
        self._generator.prefill_step_size = step
        prompts, tokens = self._generator.next()
        outcomes: list[Progress | Emitted] = [Emitted(self._uids[token.uid], token.token) for token in tokens]
        for prompt in prompts:
            done, total = prompt.progress
            job_id = self._uids[prompt.uid]
            if prompt.end_of_prompt:
                self._prefilling.discard(job_id)
            # NOTE: the generator keeps the last prompt token for its first decode step; only then is the prompt read.
            outcomes.append(Progress(job_id, total if prompt.end_of_prompt else min(done, total - 1), total))
        return outcomes

    def remove(self, job_ids: Sequence[str]) -> None:
        gone = set(job_ids)
        uids = [uid for uid, job_id in self._uids.items() if job_id in gone]
        if not uids:
            return
        self._generator.remove(uids)
        self._prefilling -= gone
        for uid in uids:
            del self._uids[uid]

    def reset(self) -> None:
        self._generator.close()
        self._uids.clear()
        self._prefilling.clear()
        self._generator = self._new_generator()

    def ready_in_s(self) -> float | None:
        return 0.0 if self._uids else None

    def close(self) -> None:
        self._generator.close()
        self._generator = None
        self._network = None
