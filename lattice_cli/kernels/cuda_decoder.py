"""A whole decoder on an NVIDIA GPU: finds a network that cuda_plan.py knows, lays its weights out, and replaces its
call. One token for each row is one kernel (cuda/step.cuh); prompts go through mlx's products, with kernels of our own
where mlx-lm walks through time token by token (cuda/prompt.cuh). Both work on the pools of cuda_state.py.

mlx-lm 0.32 spends its time there on building and launching some 760 kernels a step (docs/log.md).

Thread: worker
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

from lattice_cli.kernels import cuda_layout
from lattice_cli.kernels.cuda_plan import MOST_ROWS, Plan
from lattice_cli.kernels.cuda_sizes import Sizes, UnknownLayers
from lattice_cli.kernels.cuda_source import CudaKernel
from lattice_cli.kernels.cuda_state import MARK_NUMBERS, Pools, Row
from lattice_cli.kernels.state import DecoderState

Array = Any  # mlx.core.array: this file must be importable without mlx

WARPS = 8
TILES = (1, 2, 4)  # of 8 rows: a kernel for each


def fuse(network: Any, blocks: int, shared_bytes: int) -> str | None:
    """Replace a network's call; None, or why it stays as it is. The GPU has `blocks` multiprocessors, and a block may
    have `shared_bytes`. Cost: as copying the weights, a layer at a time.
    """
    reason = doubt(network, blocks, shared_bytes)
    if reason is not None:
        return reason
    decoder = Decoder(network, cuda_layout.read_sizes(network), blocks, shared_bytes)
    kind = type(network)

    def call(self: Any, inputs: Array, cache: Any = None, input_embeddings: Any = None, **others: Any) -> Array:
        if input_embeddings is not None or others:
            return kind.__call__(self, inputs, cache=cache, input_embeddings=input_embeddings, **others)
        return decoder(inputs, cache)

    methods = {
        "__call__": call,
        "make_cache": lambda _self: decoder.make_cache(),
        "warm": lambda _self: decoder.warm(),
    }
    fused = type(kind.__name__, (kind,), methods)
    network.__class__ = fused
    return None


def doubt(network: Any, blocks: int, shared_bytes: int) -> str | None:
    """Why `fuse` would leave a network as it is; None where it would not. Shapes and formats decide: nothing is
    evaluated, and nothing changed. Cost: a few milliseconds.
    """
    try:
        sizes = cuda_layout.read_sizes(network)
        cuda_layout.check_sizes(sizes)
        for layer in network.layers:
            cuda_layout.layer_parts(layer, sizes)  # all are known before one is changed
        for tiles in TILES:
            Plan(sizes, {}, tiles, WARPS, blocks, shared_bytes).source()
    except UnknownLayers as reason:
        return f"its steps are not fused: {reason}"
    return None


class Decoder:
    """ids (rows, tokens) and a cache -> logits (rows, tokens, vocabulary)."""

    def __init__(self, network: Any, sizes: Sizes, blocks: int, shared_bytes: int) -> None:
        import mlx.core as mx

        self.sizes = sizes
        self._blocks = blocks
        self._shared_bytes = shared_bytes
        holder, inner = cuda_layout.parts_of(network)
        self._inner = inner
        head = getattr(holder, "lm_head", None)
        self._layers: list[Array] = []
        parts: list[cuda_layout.LayerParts] = []
        self._offsets: dict[str, dict[str, int]] = {}
        for layer in inner.layers:
            kind, offsets, whole, own = cuda_layout.lay_out(layer, sizes)
            self._offsets[kind] = offsets
            self._layers.append(whole)
            parts.append(own)
        self._embedding = cuda_layout.matrix_buffer(inner.embed_tokens)
        self._head_weights = self._embedding if head is None else cuda_layout.matrix_buffer(head)
        self._head = cuda_layout.product_of(head or inner.embed_tokens)
        attention = next(layer.self_attn for layer in inner.layers if hasattr(layer, "self_attn"))
        self._norm = inner.norm.weight.astype(mx.float32)
        self._turns = cuda_layout.turns_of(attention.rope, sizes.head_dim)
        self._arrivals = mx.zeros((16,), dtype=mx.uint64)
        mx.eval(self._norm, self._turns, self._arrivals)
        self.pools = Pools(sizes)
        self._steps: dict[int, tuple[Plan, CudaKernel, Array]] = {}
        self._rows_array: dict[tuple[int, int], Array] = {}
        self._last: tuple[tuple[Any, ...], Array, Array, Array] | None = (
            None  # rows of the newest step, and their arrays
        )
        from lattice_cli.kernels.cuda_prompt import Prompts

        self._prompts = Prompts(sizes, self.pools, parts, self._norm, self._turns)

    # What DecoderState asks for.

    def Sequence(self, _shape: object) -> Row:
        return Row(self.pools)

    def restored(self, _shape: object, tokens: int, dump: list[bytes]) -> Row:
        """A row of what `Row.dump` told. Raises: ValueError."""
        from lattice_cli.kernels.cuda_pieces import restore_row

        row = Row(self.pools)
        restore_row(row, self.pools, tokens, dump)
        return row

    def stack(
        self, ids: Array, _network: object, rows: Many[Row], counts: Many[int], _marks: Many[Array]
    ) -> tuple[Array, Array]:
        """Logits of a chunk; every row grows by its count of the tokens. Also what must be evaluated for that."""
        self.pools.append(rows, counts)
        if ids.shape[1] == 1 and all(count == 1 for count in counts):
            pieces = [
                self._step(ids[at : at + MOST_ROWS, 0], rows[at : at + MOST_ROWS])
                for at in range(0, len(rows), MOST_ROWS)
            ]
            import mlx.core as mx

            logits = pieces[0] if len(pieces) == 1 else mx.concatenate(pieces)
            return logits[:, None, :], self.pools.mark
        h = self._prompts(self._inner.embed_tokens(ids), rows, counts)
        return self._head(h), self.pools.mark

    def __call__(self, ids: Array, cache: Any) -> Array:
        state: DecoderState
        if cache is None:
            state = DecoderState(self, None, [Row(self.pools) for _ in range(ids.shape[0])])
        else:
            (state,) = cache
        return state.run(ids, None)

    def make_cache(self) -> list[DecoderState]:
        return [DecoderState(self, None)]

    def warm(self) -> None:
        """Compile what rows of later would wait for: a chunk of a prompt, and steps of more than 8 and 16 rows.

        All rows of these steps are one, whose pages and state get whatever comes of that and are free afterwards.
        """
        import mlx.core as mx

        (state,) = self.make_cache()
        ids = mx.zeros((1, 2), dtype=mx.uint32)
        for _ in range(2):  # the second one after something
            self(ids, [state])
            mx.eval(state.state)
        for rows in (9, 17):
            mx.eval(self._step(mx.zeros((rows,), dtype=mx.uint32), state.rows * rows), self.pools.mark)
        self._last = None

    # A step.

    def _step(self, tokens: Array, rows: Many[Row]) -> Array:
        import mlx.core as mx

        plan, kernel, work = self._kernel(len(rows))
        width = max(len(row.page_numbers) for row in rows)
        key = tuple((id(row), row.slot, tuple(row.page_numbers), row.tokens) for row in rows)
        before = tuple((*one[:3], one[3] - 1) for one in key)
        if self._last is not None and self._last[0] == before:
            _, positions, slots, table = self._last
        else:
            positions = self.pools.ints([row.tokens - 1 for row in rows], MARK_NUMBERS)
            slots = self.pools.ints([row.slot for row in rows])
            table = self.pools.ints([number for row in rows for number in _padded(row.page_numbers, width)])
        if (len(rows), width) not in self._rows_array:
            self._rows_array[len(rows), width] = self.pools.ints([len(rows), width])
        if len(rows) < 4:  # arrays of 8 bytes and less are in the host's memory
            tokens = mx.pad(tokens, (0, 4 - len(rows)))
        pools = self.pools
        states = pools.states.array if pools.states is not None else self._norm
        inputs = [*self._layers, self._embedding, self._head_weights, self._norm, self._turns,
                  self._rows_array[len(rows), width], tokens.astype(mx.uint32), positions, slots, table,
                  pools.pages.array, states, work, self._arrivals, pools.mark]  # fmt: skip
        shapes = [(len(rows), plan.sizes.vocabulary), (MARK_NUMBERS,)]
        logits, pools.mark = kernel(inputs, plan.blocks, shapes, [mx.float32, mx.int32])
        self._last = (key, pools.mark, slots, table)
        return logits

    def _kernel(self, rows: int) -> tuple[Plan, CudaKernel, Array]:
        """For so many rows at most; compiled on first use."""
        import mlx.core as mx

        tiles = next(tiles for tiles in TILES if rows <= 8 * tiles)
        if tiles not in self._steps:
            plan = Plan(self.sizes, self._offsets, tiles, WARPS, self._blocks, self._shared_bytes)
            layers = [f"layer{number}" for number in range(len(self._layers))]
            pointers = ", ".join(f"(const k::u8*){name}" for name in layers)
            body = f"""
  const k::u8* layers[] = {{{pointers}}};
  const k::Arguments arguments{{layers, (const k::u8*)embedding, (const k::u8*)head, norm, turns, rows, tokens,
    positions, slots, table, rows[1], (k::u16*)pages, (float*)states, (float*)work, (k::u64*)arrivals, logits, next}};
  using Step = k::Step<k::C>;
  Step(Step::share(arguments)).run();
"""
            names = [*layers, "embedding", "head", "norm", "turns", "rows", "tokens", "positions", "slots", "table",
                     "pages", "states", "work", "arrivals", "mark"]  # fmt: skip
            sources = ("portable.cuh", "product.cuh", "frame.cuh", "hidden.cuh", "recurrent.cuh", "attention.cuh",
                       "step.cuh")  # fmt: skip
            shared = plan.memory.nbytes + plan.tail_bytes
            kernel = CudaKernel("step", sources, plan.source(), body, names, ("logits", "next"),
                                threads=32 * WARPS, shared_bytes=shared)  # fmt: skip
            work = mx.zeros((plan.work_numbers(),), dtype=mx.float32)
            mx.eval(work)
            self._steps[tiles] = (plan, kernel, work)
        return self._steps[tiles]


def _padded(numbers: list[int], width: int) -> list[int]:
    return [*numbers, *([0] * (width - len(numbers)))]
