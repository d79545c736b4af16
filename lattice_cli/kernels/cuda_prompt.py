"""Prompts on an NVIDIA GPU: mlx's products over a chunk of tokens, and kernels of our own for what goes through time
and for what is written into the pools of cuda_state.py.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lattice_cli.kernels.cuda_plan import PAGE_TOKENS
from lattice_cli.kernels.cuda_source import CudaKernel
from lattice_cli.kernels.cuda_state import MARK_NUMBERS, MARKED, Row

if TYPE_CHECKING:
    from lattice_cli.kernels.cuda_decoder import Decoder

Array = Any  # mlx.core.array: this file must be importable without mlx


SPAN_TOKENS = 32  # of a thread of the convolution; cuda/prompt.cuh


@dataclass(slots=True)
class Chunk:
    """A chunk of `length` tokens for each row, of which `counts` are none of them padding."""

    rows: Sequence[Row]
    starts: list[int]  # tokens in the rows before it
    counts: Sequence[int]
    length: int
    positions: Array
    slots: Array
    count_array: Array
    table: Array
    width: int
    offset: Any  # of RoPE: one number, or (rows,)
    mask: Any  # of attention over keys that are gathered from pages; None: causal

    @property
    def even(self) -> bool:
        return len(set(self.starts)) == 1


class Prompts:
    """ids (rows, tokens) -> normalised hidden states; the rows' pools grow by them."""

    def __init__(self, decoder: Decoder, inner: Any, joined: list[Any]) -> None:
        self._decoder = decoder
        self._inner = inner
        self._joined = joined
        self._kernels: dict[str, CudaKernel] = {}

    def __call__(self, ids: Array, rows: Sequence[Row], counts: Sequence[int]) -> Array:
        h = self._inner.embed_tokens(ids)
        chunk = self._chunk(rows, counts, int(ids.shape[1]))
        kinds = [0, 0]  # layers of attention and recurrent ones so far
        for layer, joined in zip(self._inner.layers, self._joined, strict=True):
            x = layer.input_layernorm(h)
            recurrent = hasattr(layer, "linear_attn")
            mix = self._recurrent if recurrent else self._attention
            h = h + mix(layer, joined, x, chunk, kinds[recurrent])
            h = h + layer.mlp(layer.post_attention_layernorm(h))
            kinds[recurrent] += 1
        return self._inner.norm(h)

    def _chunk(self, rows: Sequence[Row], counts: Sequence[int], length: int) -> Chunk:
        import mlx.core as mx

        starts = [row.tokens - count for row, count in zip(rows, counts, strict=True)]
        width = max(1, *(len(row.page_numbers) for row in rows))
        table = [[*row.page_numbers, *([0] * (width - len(row.page_numbers)))] for row in rows]
        many = self._decoder.pools.ints
        chunk = Chunk(rows, starts, counts, length, many(starts), many([row.slot for row in rows]), many(list(counts)),
                      many([number for row in table for number in row]), width,
                      starts[0], None)  # fmt: skip
        if not chunk.even:
            chunk.offset = mx.array(starts, dtype=mx.int32)
            at = mx.arange(width * PAGE_TOKENS)
            last = chunk.offset[:, None] + mx.arange(length)[None]  # (rows, tokens): what each may see
            chunk.mask = (at[None, None] <= last[..., None])[:, None]
        return chunk

    def _recurrent(self, layer: Any, joined: Any, x: Array, chunk: Chunk, index: int) -> Array:
        import mlx.core as mx

        sizes, net, pools = self._decoder.sizes, layer.linear_attn, self._decoder.pools
        assert pools.states is not None
        rows, length = x.shape[:2]
        parts = joined.product(x)  # (rows, tokens, channels + values + 2 value heads)
        cuts = [sizes.channels, sizes.channels + sizes.values, sizes.channels + sizes.values + sizes.value_heads]
        mixed, z, b, a = mx.split(parts, cuts, axis=-1)
        inputs = [mixed, joined.conv, pools.states.array, chunk.positions, chunk.slots, chunk.count_array,
                  self._shape(length, index), pools.mark]  # fmt: skip
        blocks = rows * -(-sizes.channels // 128) * -(-length // SPAN_TOKENS)
        mixed, pools.mark = self._convolve()(inputs, blocks, [mixed.shape, (MARK_NUMBERS,)], [mixed.dtype, mx.int32])
        inputs = [mixed, a, b, joined.a_log, joined.dt_bias, pools.states.array, chunk.slots, chunk.count_array,
                  self._shape(length, index), pools.mark]  # fmt: skip
        blocks = rows * sizes.value_heads * (sizes.value_dim // 16)
        shape = (rows, length, sizes.value_heads, sizes.value_dim)
        out, pools.mark = self._scan()(inputs, blocks, [shape, (MARK_NUMBERS,)], [mixed.dtype, mx.int32])
        out = net.norm(out, z.reshape(shape))
        return net.out_proj(out.reshape(rows, length, -1))

    def _attention(self, layer: Any, joined: Any, x: Array, chunk: Chunk, index: int) -> Array:
        import mlx.core as mx

        sizes, net, pools = self._decoder.sizes, layer.self_attn, self._decoder.pools
        rows, length = x.shape[:2]
        width, keys_width = sizes.head_dim, sizes.kv_heads * sizes.head_dim
        parts = joined.product(x)
        queries, keys, values = mx.split(
            parts, [parts.shape[-1] - 2 * keys_width, parts.shape[-1] - keys_width], axis=-1
        )
        gate = None
        queries = queries.reshape(rows, length, sizes.heads, -1)
        if sizes.gated:
            queries, gate = mx.split(queries, 2, axis=-1)
            gate = gate.reshape(rows, length, -1)
        keys = keys.reshape(rows, length, sizes.kv_heads, width)
        values = values.reshape(rows, length, sizes.kv_heads, width)
        if sizes.head_norm:
            queries, keys = net.q_norm(queries), net.k_norm(keys)
        queries = net.rope(queries.transpose(0, 2, 1, 3), offset=chunk.offset)
        keys = net.rope(keys.transpose(0, 2, 1, 3), offset=chunk.offset)
        shape = self._shape(length, index, chunk.width, rows)
        inputs = [keys.transpose(0, 2, 1, 3), values, pools.pages.array, chunk.table, chunk.positions,
                  chunk.count_array, shape, pools.mark]  # fmt: skip
        numbers = rows * length * sizes.kv_heads * width // 8
        (pools.mark,) = self._append()(inputs, min(1024, -(-numbers // 256)), [(MARK_NUMBERS,)], [mx.int32])
        if any(chunk.starts):
            keys, values = self._gather(chunk, index)
        else:
            values = values.transpose(0, 2, 1, 3)
        mask = "causal" if chunk.even else chunk.mask
        out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=sizes.scale, mask=mask)
        out = out.transpose(0, 2, 1, 3).reshape(rows, length, -1)
        return net.o_proj(out if gate is None else out * mx.sigmoid(gate))

    def _gather(self, chunk: Chunk, index: int) -> tuple[Array, Array]:
        """Keys and values of all tokens so far, (rows, heads, tokens, head dim); zeros where a row has fewer."""
        import mlx.core as mx

        sizes, pools, rows = self._decoder.sizes, self._decoder.pools, len(chunk.rows)
        pages = mx.depends([pools.pages.array], [pools.mark])[0]
        pages = pages.reshape(-1, sizes.kv_heads, PAGE_TOKENS, sizes.head_dim)  # (page x layer x 2, ...)
        table = chunk.table[: rows * chunk.width].reshape(rows, chunk.width)
        found = []
        ends = [start + chunk.length for start in chunk.starts]
        for half in (0, 1):
            taken = pages[(table * sizes.attention_layers + index) * 2 + half]  # (rows, pages, heads, tokens, dim)
            taken = taken.transpose(0, 2, 1, 3, 4).reshape(rows, sizes.kv_heads, -1, sizes.head_dim)
            if chunk.even:
                taken = taken[:, :, : ends[0]]
            else:  # what nobody wrote may be no number
                lengths = mx.array([start + count for start, count in zip(chunk.starts, chunk.counts, strict=True)])
                there = (mx.arange(taken.shape[2])[None] < lengths[:, None])[:, None, :, None]
                taken = mx.where(there, taken, mx.zeros((), dtype=taken.dtype))
            found.append(taken)
        return found[0], found[1]

    # Kernels, compiled on first use.

    def _shape(self, *numbers: int) -> Array:
        return self._decoder.pools.ints(numbers)

    def _made(self, name: str, body: str, inputs: tuple[str, ...], outputs: tuple[str, ...], threads: int,
              shared: int = 0) -> CudaKernel:  # fmt: skip
        if name not in self._kernels:
            self._kernels[name] = CudaKernel(
                name, ("portable.cuh", "prompt.cuh"), "", body, inputs, outputs, threads=threads, shared_bytes=shared
            )
        return self._kernels[name]

    @property
    def _half(self) -> str:
        return str(self._decoder.sizes.half).lower()

    def _convolve(self) -> CudaKernel:
        sizes, pools = self._decoder.sizes, self._decoder.pools
        stride = pools.delta_numbers + pools.tap_numbers
        body = f"""
  float* taps = (float*)states + {pools.delta_numbers}l + long(shape[1]) * {4 * sizes.channels};
  k::convolve<{self._half}>((const k::u16*)mixed, weight, taps, {stride}l, slots, positions, counts, shape[0],
                            {sizes.channels}, (k::u16*)out);
  {MARKED}
"""
        names = ("mixed", "weight", "states", "positions", "slots", "counts", "shape", "mark")
        return self._made("convolve", body, names, ("out", "marked"), 128)

    def _scan(self) -> CudaKernel:
        sizes, pools = self._decoder.sizes, self._decoder.pools
        stride = pools.delta_numbers + pools.tap_numbers
        shares, head = sizes.value_dim // 16, sizes.value_dim * sizes.key_dim
        keys = sizes.key_heads * sizes.key_dim
        body = f"""
  const k::u16* in = (const k::u16*)mixed;
  const int share = k::block_index() % {shares}, head = k::block_index() / {shares} % {sizes.value_heads};
  const int row = k::block_index() / {shares * sizes.value_heads};
  float* own = (float*)states + slots[row] * {stride}l + (long(shape[1]) * {sizes.value_heads} + head) * {head};
  const k::Scan<k::u16> all{{in, in + {keys}, in + {2 * keys}, {sizes.channels}, {sizes.channels}, {sizes.channels},
    (const k::u16*)a, (const k::u16*)b, a_log, dt_bias, counts, nullptr, shape[0]}};
  k::scan<k::u16, {self._half}, true, {sizes.key_heads}, {sizes.value_heads}, {sizes.key_dim}, {sizes.value_dim}>(
    all, row, head, share, own, own, (k::u16*)out);
  {MARKED}
"""
        names = ("mixed", "a", "b", "a_log", "dt_bias", "states", "slots", "counts", "shape", "mark")
        shared = 4 * 16 * (2 * sizes.key_dim + 16 + 3)
        return self._made("scan", body, names, ("out", "marked"), 128, shared)

    def _append(self) -> CudaKernel:
        sizes = self._decoder.sizes
        body = f"""
  k::append<{sizes.kv_heads}, {sizes.head_dim}, {sizes.attention_layers}, {PAGE_TOKENS}>(
    (const k::u16*)keys, (const k::u16*)values, (k::u16*)pages, shape[1], table, shape[2], positions, counts,
    shape[0], shape[3]);
  {MARKED}
"""
        names = ("keys", "values", "pages", "table", "positions", "counts", "shape", "mark")
        return self._made("append", body, names, ("marked",), 256)
