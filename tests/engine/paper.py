"""A network on paper: its state is the ids it has read, and what it says next depends on all of them.

It stands where the fused decoder stands (a DecoderState over sequences), so batches, chunks, copies and the prefix
cache work on it as they do on the real one; a state that holds anything but what it should shows in the next token.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from lattice_cli.kernels.state import DecoderState

Ids = tuple[int, ...]
WORDS = 90
PAGE = 16


@dataclass(frozen=True)
class Shape:
    trims: bool


class PaperSequence:
    """One row's ids. A page counts 4 bytes, a state of a sequence that does not trim 10."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.ids: Ids = ()

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def can_trim(self) -> bool:
        return self.shape.trims

    def copy(self) -> PaperSequence:
        twin = PaperSequence(self.shape)
        twin.ids = self.ids
        return twin

    def trim(self, tokens: int) -> None:
        assert self.shape.trims
        self.ids = self.ids[:tokens]

    def pieces(self) -> list[tuple[Any, int]]:
        pages: list[tuple[Any, int]] = [(self.ids[: at + PAGE], 4) for at in range(0, len(self.ids), PAGE)]
        return pages if self.shape.trims else [*pages, (("state", self.ids), 10)]


class PaperNative:
    """The module of kernels, as far as a DecoderState asks."""

    Sequence = PaperSequence

    def stack(
        self, h: mx.array, network: Any, rows: list[PaperSequence], counts: list[int], marks: list[Any]
    ) -> tuple[mx.array, mx.array]:
        """Each row takes in its ids; out comes what it says next, (rows, tokens, 1)."""
        said = []
        for row, ids, count in zip(rows, h[..., 0].tolist(), counts, strict=True):
            row.ids += tuple(ids[:count])
            said.append([[next_word(row.ids)]] * len(ids))
        return mx.array(said), mx.zeros((1,))


class PaperNetwork:
    """Ids (rows, tokens) -> logits (rows, tokens, words). `fault` is asked before each pass and may raise."""

    def __init__(self, trims: bool, fault: Callable[[], None] = lambda: None) -> None:
        self._shape = Shape(trims)
        self.fault = fault
        self.read = 0

    def make_cache(self) -> list[DecoderState]:
        return [DecoderState(PaperNative(), self._shape)]

    def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
        self.fault()
        self.read += inputs.size
        out = cache[0].run(inputs[..., None], self)  # (rows, tokens, 1)
        return (out == mx.arange(WORDS)).astype(mx.float32)  # (rows, tokens, words)


def next_word(ids: Ids) -> int:
    return hash(ids) % (WORDS - 1) + 1


def reply(ids: Ids, tokens: int) -> Ids:
    """What a network on paper says to a prompt."""
    whole = ids
    for _ in range(tokens):
        whole = (*whole, next_word(whole))
    return whole[len(ids) :]
