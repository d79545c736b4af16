"""The cache of a fused decoder: one object for all layers and all rows of a batch.

It has the methods of mlx-lm 0.32's batch caches, so a batch handles it as it handles those. What is special: a row
keeps its own length and its own pages (native/pages.h), so rows are never padded, and merging, splitting, filtering and
copying batches moves no keys and no values. Copies share pages; who writes first gets a page of its own.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

Array = Any  # mlx.core.array: this file must be importable without mlx


class DecoderState:
    """`rows` sequences of a network. A fresh one stands for one empty row."""

    def __init__(self, native: Any, shape: Any, rows: list[Any] | None = None) -> None:
        self._native = native
        self._shape = shape
        self.rows: list[Any] = [native.Sequence(shape)] if rows is None else rows
        self._marks: list[Array] = []  # of the calls that wrote these rows last
        self._left: list[int] | None = None  # tokens still to come per row; the rest of a chunk is padding
        self._joined: tuple[list[int], int] | None = None  # of the next call, see `join`

    def run(self, h: Array, network: Any) -> Array:
        """Hidden states (rows, tokens, hidden) through the decoder; every row grows by its share of the tokens."""
        if self._joined is not None:
            return self._run_joined(h, network)
        length = h.shape[1]
        counts = [length] * len(self.rows) if self._left is None else [min(length, max(left, 0)) for left in self._left]
        out, mark = self._native.stack(h, network, self.rows, counts, self._marks)
        self._marks = [mark]
        if self._left is not None:
            self._left = [left - length for left in self._left]
        return out

    @property
    def joins(self) -> bool:
        """Whether `join` may be called."""
        return bool(getattr(self._native, "joins", False))

    def join(self, counts: Sequence[int], heard: int) -> None:
        """The next call brings so many tokens of each row, (1, all of them), row after row. Only the last token of
        each of the first `heard` rows comes out, (heard, 1, hidden): a vocabulary's logits are dear. 0: all, as they
        came.
        """
        self._joined = list(counts), heard

    def _run_joined(self, h: Array, network: Any) -> Array:
        import mlx.core as mx

        assert self._joined is not None
        (counts, heard), self._joined = self._joined, None
        out, mark = self._native.stack(h, network, self.rows, counts, self._marks)
        self._marks = [mark]
        if heard == 0:
            return out
        return out[0, mx.array([end - 1 for end in accumulate(counts[:heard])])][:, None]

    def follow(self, other: DecoderState) -> None:
        """These rows were among `other`'s when it was called last."""
        self._marks = list(other._marks)

    # What a batch generator asks of a cache.

    @property
    def state(self) -> list[Array]:
        """What must be evaluated for everything to be written."""
        return list(self._marks)

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)

    @property
    def offset(self) -> int:
        return max((int(row.tokens) for row in self.rows), default=0)

    def size(self) -> int:
        return self.offset

    def empty(self) -> bool:
        return self.offset == 0

    def prepare(self, *, lengths: Sequence[int] | None = None, **_padding: object) -> None:
        """The next calls bring `lengths` tokens of each row, padded on the right."""
        self._left = None if lengths is None else list(lengths)

    def finalize(self) -> None:
        self._left = None

    def extend(self, other: DecoderState) -> None:
        """Take in another's rows."""
        self.rows = [*self.rows, *other.rows]
        self._marks = _distinct([*self._marks, *other._marks])

    def filter(self, keep: Iterable[int]) -> None:
        """Keep the rows of these numbers."""
        self.rows = [self.rows[int(index)] for index in keep]

    def extract(self, index: int) -> DecoderState:
        """A copy of one row."""
        return self._with([self.rows[index].copy()])

    @classmethod
    def merge(cls, states: Sequence[DecoderState]) -> DecoderState:
        """One batch of the rows of several."""
        first = states[0]
        merged = cls(first._native, first._shape, [row for state in states for row in state.rows])
        merged._marks = _distinct([mark for state in states for mark in state._marks])
        return merged

    def is_trimmable(self) -> bool:
        return all(row.can_trim for row in self.rows)

    def trim(self, tokens: int) -> int:
        """Forget the last `tokens` of every row; returns how many that are."""
        gone = min([tokens, *(int(row.tokens) for row in self.rows)])
        for row in self.rows:
            row.trim(row.tokens - gone)
        return gone

    def __deepcopy__(self, _memo: object) -> DecoderState:
        copied = self._with([row.copy() for row in self.rows])
        copied._left = None if self._left is None else list(self._left)
        return copied

    def restored(self, tokens: int, dump: list[bytes]) -> DecoderState | None:
        """A state of one row with `tokens` tokens, as `row.dump` told of it; None where sizes do not fit."""
        make = getattr(self._native, "restored", None) or self._native.Sequence.restored
        try:
            return DecoderState(self._native, self._shape, [make(self._shape, tokens, dump)])
        except (ValueError, TypeError):
            return None

    def _with(self, rows: list[Any]) -> DecoderState:
        state = DecoderState(self._native, self._shape, rows)
        state._marks = list(self._marks)
        return state


def _distinct(marks: list[Array]) -> list[Array]:
    return list({id(mark): mark for mark in marks}.values())
