"""Backend: what turns rows into tokens. MlxBackend (mlx_backend.py) does it on an mlx network, ScriptedBackend from a
script.

Knows rows; knows no text and no queue.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from lattice_cli.engine.reply import Score
from lattice_cli.engine.row import Row


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` tokens of a row are in its cache."""

    job_id: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Emitted:
    """One token of a row, end tokens included; its score where the row asked for one."""

    job_id: str
    token_id: int
    score: Score | None = None


class PassFault(RuntimeError):
    """`cause` came out of a pass that had begun before, with the rows `job_ids`: some may have left since, and who came
    since has nothing to do with it.
    """

    def __init__(self, cause: Exception, job_ids: frozenset[str]) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.job_ids = job_ids


class Backend(Protocol):
    """Rows in, tokens out. Any exception from `insert` or `advance` makes the whole backend state void:
    call `reset` and insert the rows again. A `PassFault` may come when there are no rows.
    """

    def insert(self, row: Row) -> None:
        """Take a row in; its prompt and emitted ids are read by the coming `advance` calls. Cheap."""

    def advance(self) -> list[Progress | Emitted]:
        """One token for each decoding row, a chunk of prompt over the rows in prefill, or both."""

    def remove(self, job_ids: Sequence[str]) -> None:
        """Forget rows at once; the others go on undisturbed. Unknown ids are ignored."""

    def reset(self) -> None:
        """Forget all rows and any state a fault may have spoilt."""

    def score(self, ids: tuple[int, ...], top: int) -> Iterator[list[Score]]:
        """Log-probabilities of the tokens of a prompt after its first, and of the `top` likeliest in each place: one
        chunk for each call of `next`. No row is touched, also when it raises.
        """

    def ready_in_s(self) -> float | None:
        """Seconds until `advance` has something to do: 0 is now, None is not before a row comes or goes."""

    def close(self) -> None:
        """Let go of the model; no other call follows."""
