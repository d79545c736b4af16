"""The kernels between the products of a prompt's chunk on an NVIDIA GPU (cuda/prompt.cuh, cuda/scan.cuh), compiled on
first use for one network's sizes. Hidden states are float32, what products take and give has 16 bits.

Thread: worker
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lattice_cli.kernels.cuda_sizes import PAGE_TOKENS, Sizes
from lattice_cli.kernels.cuda_source import CudaKernel
from lattice_cli.kernels.cuda_state import MARK_NUMBERS, MARKED, Pools

if TYPE_CHECKING:
    from lattice_cli.kernels.cuda_prompt import Chunk

Array = Any  # mlx.core.array: this file must be importable without mlx

SPAN_TOKENS = 16  # SPAN of cuda/scan.cuh
MATRICES = 2 * SPAN_TOKENS * 20 + 2 * SPAN_TOKENS  # numbers; MATRICES of cuda/scan.cuh
_VALUES = 16  # of a head, that a block of the scan has


class Between:
    """Each method is one kernel, or two; arrays are (rows, tokens, ...)."""

    def __init__(self, sizes: Sizes, pools: Pools, turns: Array) -> None:
        self._sizes = sizes
        self._pools = pools
        self._turns = turns
        self._half = str(sizes.half).lower()
        self._kernels: dict[str, CudaKernel] = {}

    def add_norm(self, h: Array | None, more: Array, weight: Array) -> tuple[Array, Array]:
        """The hidden state with what a product adds to it, in float32, and that normalised. `h` None: nothing yet."""
        import mlx.core as mx

        sizes, first = self._sizes, str(h is None).lower()
        body = f"""
  k::add_norm<{self._half}, {sizes.hidden}, {first}>(h, (const k::u16*)more, weight, {sizes.eps!r}f, sum, (k::u16*)out);
"""
        kernel = self._made(f"add_norm_{first}", body, ("h", "more", "weight"), ("sum", "out"), 128, 16)
        # Where there is none, another array stands in its place, which nobody reads.
        inputs = [weight if h is None else h, more, weight]
        total, out = kernel(inputs, more.size // sizes.hidden, [more.shape, more.shape], [mx.float32, more.dtype])
        return total, out

    def swiglu(self, gate: Array, up: Array) -> Array:
        """silu(gate) * up, (rows, tokens, intermediate). One array twice: each token has its gates and then its ups."""
        width = self._sizes.intermediate
        joined = int(gate.shape[-1]) > width
        pitch, second = (2 * width, f"up + {width}") if joined else (width, "up")
        shape = (*gate.shape[:-1], width)
        numbers = math.prod(shape)
        ups = f"(const k::u16*){second}"
        body = f"k::swiglu<{self._half}>((const k::u16*)gate, {ups}, {pitch}, {width}, size[0], (k::u16*)out);"
        kernel = self._made(f"swiglu_{joined}".lower(), body, ("gate", "up", "size"), ("out",), 256)
        inputs = [gate, up, self._pools.ints([numbers])]
        return kernel(inputs, _blocks(numbers, 1024), [shape], [gate.dtype])[0]

    def recurrence(self, small: dict[str, Array], parts: Array, chunk: Chunk, index: int) -> Array:
        """Convolution and gated delta rule of a recurrent layer, (rows, tokens, values) float32; `index` counts such
        layers.
        """
        import mlx.core as mx

        sizes, pools = self._sizes, self._pools
        assert pools.states is not None
        rows, length = chunk.rows, chunk.length
        spans = -(-length // SPAN_TOKENS)
        shape = pools.ints([length, index])
        keys = (rows, spans, sizes.key_heads, SPAN_TOKENS, sizes.key_dim)
        values = (rows, spans, sizes.value_heads, SPAN_TOKENS, sizes.value_dim)
        matrices = (rows, spans, sizes.value_heads, MATRICES)
        inputs = [parts, small["CONV"], small["A_LOG"], small["DT_BIAS"], pools.states.array, chunk.slots,
                  chunk.positions, chunk.count_array, shape, pools.mark]  # fmt: skip
        *made, pools.mark = self._prepare()(
            inputs, rows * spans * sizes.value_heads, [keys, keys, values, matrices, (MARK_NUMBERS,)],
            [mx.float32] * 4 + [mx.int32],
        )  # fmt: skip
        inputs = [*made, parts, pools.states.array, chunk.slots, chunk.positions, chunk.count_array, shape, pools.mark]
        blocks = rows * sizes.value_heads * (sizes.value_dim // _VALUES)
        shapes = [(rows, length, sizes.values), (MARK_NUMBERS,)]
        out, pools.mark = self._scan()(inputs, blocks, shapes, [mx.float32, mx.int32])
        return out

    def gated_norm(self, made: Array, parts: Array, weight: Array) -> Array:
        """The recurrence's result, normalised head by head, times silu of its gate."""
        sizes = self._sizes
        body = f"""
  k::gated_norm<{self._half}, {sizes.value_heads}, {sizes.value_dim}>(
    made, (const k::u16*)parts, {sizes.delta_rows}, {sizes.channels}, weight, {sizes.eps!r}f, size[0], (k::u16*)out);
"""
        kernel = self._made("gated_norm", body, ("made", "parts", "weight", "size"), ("out",), 128)
        tokens = made.size // sizes.values
        inputs = [made, parts, weight, self._pools.ints([tokens])]
        return kernel(inputs, _blocks(tokens * sizes.value_heads, 4), [made.shape], [parts.dtype])[0]

    def attention_heads(
        self, small: dict[str, Array], parts: Array, chunk: Chunk, index: int
    ) -> tuple[Array, Array, Array]:
        """Queries, keys and values (rows, heads, tokens, head dim), normalised and turned; keys and values are in their
        pages, too. `index` counts layers of attention.
        """
        import mlx.core as mx

        sizes, pools = self._sizes, self._pools
        given = [sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.turned]
        kind = [str(sizes.gated).lower(), str(sizes.head_norm).lower(), sizes.attention_layers, PAGE_TOKENS]
        body = f"""
  k::attention_heads<{self._half}, {_listed(given)}, {_listed(kind)}>(
    (const k::u16*)parts, q_norm, k_norm, turns, {sizes.eps!r}f, (k::u16*)pages, shape[1], table, shape[2], positions,
    counts, shape[0], shape[3], (k::u16*)queries, (k::u16*)keys, (k::u16*)values);
  {MARKED}
"""
        names = ("parts", "q_norm", "k_norm", "turns", "pages", "table", "positions", "counts", "shape", "mark")
        outputs = ("queries", "keys", "values", "marked")
        kernel = self._made("attention_heads", body, names, outputs, 128, 16 * sizes.head_dim)
        rows, length = chunk.rows, chunk.length
        inputs = [parts, small["Q_NORM"], small["K_NORM"], self._turns, pools.pages.array, chunk.table, chunk.positions,
                  chunk.count_array, pools.ints([length, index, chunk.width, rows]), pools.mark]  # fmt: skip
        queries = (rows, sizes.heads, length, sizes.head_dim)
        keys = (rows, sizes.kv_heads, length, sizes.head_dim)
        *made, pools.mark = kernel(
            inputs, _blocks(rows * length * (sizes.heads + 2 * sizes.kv_heads), 4),
            [queries, keys, keys, (MARK_NUMBERS,)], [parts.dtype] * 3 + [mx.int32],
        )  # fmt: skip
        return made[0], made[1], made[2]

    def gather(self, chunk: Chunk, tokens: int, index: int) -> tuple[Array, Array]:
        """Keys and values of the rows' first `tokens` out of their pages, (rows, heads, tokens, head dim); zeros where
        a row has fewer. A link of the chain: mlx may run at any time what takes no mark (cuda_state.py).
        """
        import mlx.core as mx

        sizes, pools = self._sizes, self._pools
        given = [sizes.kv_heads, sizes.head_dim, sizes.attention_layers, PAGE_TOKENS]
        body = f"""
  k::gather_pages<{_listed(given)}>((const k::u16*)pages, shape[1], table, shape[2], positions, counts, shape[0],
                                    shape[3], (k::u16*)keys, (k::u16*)values);
  {MARKED}
"""
        names = ("pages", "table", "positions", "counts", "shape", "mark")
        kernel = self._made("gather_pages", body, names, ("keys", "values", "marked"), 256)
        shape = (chunk.rows, sizes.kv_heads, tokens, sizes.head_dim)
        inputs = [pools.pages.array, chunk.table, chunk.positions, chunk.count_array,
                  pools.ints([tokens, index, chunk.width, chunk.rows]), pools.mark]  # fmt: skip
        dtype = pools.pages.array.dtype
        keys, values, pools.mark = kernel(
            inputs, _blocks(math.prod(shape), 2048), [shape, shape, (MARK_NUMBERS,)], [dtype, dtype, mx.int32]
        )
        return keys, values

    def attention_gate(self, made: Array, parts: Array) -> Array:
        """Attention's result (rows, heads, tokens, head dim) as (rows, tokens, heads x head dim), times its gate."""
        sizes = self._sizes
        rows, _, length, _ = made.shape
        gated = str(sizes.gated).lower()
        body = f"""
  k::attention_gate<{self._half}, {sizes.heads}, {sizes.head_dim}, {gated}>(
    (const k::u16*)made, (const k::u16*)parts, {sizes.attention_rows}, shape[0], shape[1], (k::u16*)out);
"""
        kernel = self._made("attention_gate", body, ("made", "parts", "shape"), ("out",), 256)
        inputs = [made, parts, self._pools.ints([length, rows])]
        return kernel(inputs, _blocks(made.size, 1024), [(rows, length, sizes.heads * sizes.head_dim)], [made.dtype])[0]

    # Kernels, compiled on first use.

    def _made(self, name: str, body: str, inputs: tuple[str, ...], outputs: tuple[str, ...], threads: int,
              shared: int = 0, source: str = "prompt.cuh") -> CudaKernel:  # fmt: skip
        return self._once(
            name, lambda: CudaKernel(name, ("portable.cuh", source), "", body, inputs, outputs, threads=threads,
                                     shared_bytes=shared)
        )  # fmt: skip

    def _once(self, name: str, make: Callable[[], CudaKernel]) -> CudaKernel:
        if name not in self._kernels:
            self._kernels[name] = make()
        return self._kernels[name]

    def _prepare(self) -> CudaKernel:
        sizes = self._sizes
        body = f"""
  {self._taps()}
  k::prepare_span<{self._half}, {self._heads()}>((const k::u16*)parts, conv, a_log, dt_bias, taps, {self._stride()}l,
    slots, positions, counts, shape[0], queries, keys, values, matrices);
  {MARKED}
"""
        names = ("parts", "conv", "a_log", "dt_bias", "states", "slots", "positions", "counts", "shape", "mark")
        outputs = ("queries", "keys", "values", "matrices", "marked")
        shared = 4 * (2 * SPAN_TOKENS * (sizes.key_dim + 4) + 2 * SPAN_TOKENS * (SPAN_TOKENS + 1) + 3 * SPAN_TOKENS)
        return self._made("prepare_span", body, names, outputs, 128, shared, "scan.cuh")

    def _scan(self) -> CudaKernel:
        sizes = self._sizes
        shares, head = sizes.value_dim // _VALUES, sizes.value_dim * sizes.key_dim
        body = f"""
  using Scan = k::SpanScan<{self._half}, {self._heads()}>;
  {self._taps()}
  const int share = k::block_index() % {shares}, head = k::block_index() / {shares} % {sizes.value_heads};
  const int row = k::block_index() / {shares * sizes.value_heads};
  float* own = (float*)states + slots[row] * {self._stride()}l + (long(shape[1]) * {sizes.value_heads} + head) * {head};
  const Scan scan{{queries, keys, values, matrices, k::ceil_div(shape[0], k::SPAN), row, head, share}};
  scan.run(shape[0], counts[row], own, out);
  scan.keep_taps((const k::u16*)parts, shape[0], counts[row], positions[row], taps + slots[row] * {self._stride()}l);
  {MARKED}
"""
        names = ("queries", "keys", "values", "matrices", "parts", "states", "slots", "positions", "counts", "shape",
                 "mark")  # fmt: skip
        stage = 2 * SPAN_TOKENS * sizes.key_dim + SPAN_TOKENS * _VALUES + MATRICES
        shared = 4 * (2 * stage + 4 * 3 * SPAN_TOKENS * 4)
        return self._made("scan_spans", body, names, ("out", "marked"), 128, shared, "scan.cuh")

    def _heads(self) -> str:
        sizes = self._sizes
        return _listed([sizes.key_heads, sizes.value_heads, sizes.key_dim, sizes.value_dim])

    def _stride(self) -> int:
        """Numbers of a state."""
        return self._pools.delta_numbers + self._pools.tap_numbers

    def _taps(self) -> str:
        """`taps`: of the layer `shape[1]`, in the first state."""
        layer = 4 * self._sizes.channels
        return f"float* taps = (float*)states + {self._pools.delta_numbers}l + long(shape[1]) * {layer};"


def _blocks(units: int, each: int) -> int:
    return -(-units // each)


def _listed(numbers: Sequence[object]) -> str:
    return ", ".join(map(str, numbers))
