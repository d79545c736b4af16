"""A network's sizes, and how its matrices are stored, for the fused decoding step on an NVIDIA GPU.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PAGE_TOKENS = 128
_ALIGNED = 256  # bytes


class UnknownLayers(Exception):
    """What a network has that the fused step does not know."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a matrix' weights are stored. `group` is 64 where there are no groups."""

    bits: int
    group: int

    def nbytes(self, rows: int, columns: int) -> int:
        return rows * columns * self.bits // 8

    def subs(self, widths: Sequence[int]) -> int:
        """How many times 32 columns a warp takes in one step, of matrices as wide as `widths`: 64 bytes of a row, or 32
        of 4 bits where a width is no multiple of 128.
        """
        if self.bits == 4:
            return 2 if any(width % 128 for width in widths) else 4
        return 16 // self.bits

    def slot_bytes(self, subs: int) -> int:
        """`Layout::SLOT` of cuda/product.cuh."""
        scales = 0 if self.bits == 16 else 8 if 32 * subs // self.group == 4 else 4
        return 16 * 4 * subs * self.bits + 32 * scales


@dataclass(frozen=True, slots=True)
class Sizes:
    """A network's shape. Widths are in numbers, not bytes."""

    half: bool  # float16, else bfloat16
    linear: Layout
    embedding: Layout
    head: Layout
    hidden: int
    intermediate: int
    vocabulary: int
    eps: float
    pattern: tuple[bool, ...]  # of layers: recurrent ones
    heads: int
    kv_heads: int
    head_dim: int
    turned: int  # pairs of columns that positions turn
    scale: float
    gated: bool
    head_norm: bool
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def attention_layers(self) -> int:
        return len(self.pattern) - sum(self.pattern)

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def delta_rows(self) -> int:
        return self.channels + self.values + 2 * self.value_heads

    @property
    def attention_rows(self) -> int:
        return (self.heads * (2 if self.gated else 1) + 2 * self.kv_heads) * self.head_dim

    @property
    def joined(self) -> int:
        return max(self.delta_rows if any(self.pattern) else 0, self.attention_rows)

    @property
    def mixed(self) -> int:
        return max(self.values if any(self.pattern) else 0, self.heads * self.head_dim)

    @property
    def page_numbers(self) -> int:
        """Of a page: keys and values of all attention layers for PAGE_TOKENS tokens."""
        return self.attention_layers * 2 * self.kv_heads * PAGE_TOKENS * self.head_dim

    @property
    def together(self) -> int:
        """Query heads that one unit of attention takes."""
        per_key = self.heads // self.kv_heads
        if per_key <= 4:
            return per_key
        return next(count for count in (4, 3, 2, 1) if per_key % count == 0)


def matrix_places(layout: Layout, rows: int, columns: int) -> tuple[int, int]:
    """Where scales and biases begin in a buffer that holds one matrix."""
    if layout.bits == 16:
        return 0, 0
    scales = aligned(layout.nbytes(rows, columns))
    return scales, scales + aligned(2 * rows * columns // layout.group)


def aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED
