"""Prompts on an NVIDIA GPU: mlx's products over a chunk of tokens, and kernels of our own for what lies between them
(cuda_between.py). What is read goes into the pools of cuda_state.py.

The host builds and launches some 12 kernels a layer, which is what a short chunk waits for.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lattice_cli.kernels.cuda_between import Between
from lattice_cli.kernels.cuda_layout import LayerParts
from lattice_cli.kernels.cuda_sizes import PAGE_TOKENS, Sizes
from lattice_cli.kernels.cuda_state import Pools, Row

Array = Any  # mlx.core.array: this file must be importable without mlx


@dataclass(slots=True)
class Chunk:
    """A chunk of `length` tokens for each row, of which `counts` are none of them padding."""

    starts: list[int]  # tokens in the rows before it
    length: int
    positions: Array
    slots: Array
    count_array: Array
    table: Array
    width: int  # pages of a row in `table`
    mask: Any = None  # of attention over keys that are gathered from pages; None: causal

    @property
    def rows(self) -> int:
        return len(self.starts)

    @property
    def even(self) -> bool:
        return len(set(self.starts)) == 1


class Prompts:
    """Embeddings (rows, tokens, hidden) -> normalised hidden states of the same shape; the rows' pools grow by them."""

    def __init__(self, sizes: Sizes, pools: Pools, layers: Sequence[LayerParts], norm: Array, turns: Array) -> None:
        self._sizes = sizes
        self._pools = pools
        self._layers = layers
        self._norm = norm
        self._between = Between(sizes, pools, turns)

    def __call__(self, embedded: Array, rows: Sequence[Row], counts: Sequence[int]) -> Array:
        between = self._between
        chunk = self._chunk(rows, counts, int(embedded.shape[1]))
        more, h = embedded, None
        kinds = [0, 0]  # layers of attention and recurrent ones so far
        for layer in self._layers:
            h, x = between.add_norm(h, more, layer.small["IN_NORM"])
            parts = layer.products["IN"](x)
            mix = self._recurrent if layer.recurrent else self._attention
            more = layer.products["OUT"](mix(layer, parts, chunk, kinds[layer.recurrent]))
            h, x = between.add_norm(h, more, layer.small["POST_NORM"])
            both = layer.products.get("GATE_UP")
            gate = (both or layer.products["GATE"])(x)
            up = gate if both else layer.products["UP"](x)
            more = layer.products["DOWN"](between.swiglu(gate, up))
            kinds[layer.recurrent] += 1
        return between.add_norm(h, more, self._norm)[1]

    def _chunk(self, rows: Sequence[Row], counts: Sequence[int], length: int) -> Chunk:
        import mlx.core as mx

        starts = [row.tokens - count for row, count in zip(rows, counts, strict=True)]
        width = max(1, *(len(row.page_numbers) for row in rows))
        table = [[*row.page_numbers, *([0] * (width - len(row.page_numbers)))] for row in rows]
        many = self._pools.ints
        chunk = Chunk(
            starts, length, many(starts), many([row.slot for row in rows]),
            many(list(counts)), many([number for row in table for number in row]), width,
        )  # fmt: skip
        if not chunk.even:
            offset = mx.array(starts, dtype=mx.int32)
            at = mx.arange(width * PAGE_TOKENS)
            last = offset[:, None] + mx.arange(length)[None]  # (rows, tokens): what each may see
            chunk.mask = (at[None, None] <= last[..., None])[:, None]
        return chunk

    def _recurrent(self, layer: LayerParts, parts: Array, chunk: Chunk, index: int) -> Array:
        made = self._between.recurrence(layer.small, parts, chunk, index)
        return self._between.gated_norm(made, parts, layer.small["OUT_NORM"])

    def _attention(self, layer: LayerParts, parts: Array, chunk: Chunk, index: int) -> Array:
        import mlx.core as mx

        queries, keys, values = self._between.attention_heads(layer.small, parts, chunk, index)
        if any(chunk.starts):
            tokens = chunk.starts[0] + chunk.length if chunk.even else chunk.width * PAGE_TOKENS
            keys, values = self._between.gather(chunk, tokens, index)
        mask = "causal" if chunk.even else chunk.mask
        made = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self._sizes.scale, mask=mask)
        return self._between.attention_gate(made, parts)
