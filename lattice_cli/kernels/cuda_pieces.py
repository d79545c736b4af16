"""Pieces of the pools of cuda_state.py from and to the host: rows in files, and pools that grow where a GPU has no room
for the old and the new one.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from lattice_cli.kernels.cuda_sizes import PAGE_TOKENS
from lattice_cli.kernels.cuda_source import CudaKernel

Array = Any  # mlx.core.array: this file must be importable without mlx
Words = np.ndarray[Any, np.dtype[np.uint32]]

_AT_ONCE_BYTES = 256 << 20  # of pieces on their way


def read_piece(pool: Array, number: int) -> Words:
    """One piece, (words,). What writes to it must have been evaluated."""
    import mlx.core as mx

    return np.array(pool[number].view(mx.uint32))


def write_pieces(pool: Array, pieces: Words, numbers: Sequence[int], mark: Array) -> Array:
    """Put pieces (count, words) into a pool; the mark of that."""
    import mlx.core as mx

    count, words = pieces.shape
    sizes = mx.array([count, words // 4, 0, 0], dtype=mx.int32)
    places = mx.array([*numbers, *([0] * (-len(numbers) % 4))], dtype=mx.int32)
    inputs = [pool, mx.array(pieces), places, sizes, mark]
    (made,) = _writer()(inputs, min(1024, -(-count * words // 1024)), [mark.shape], [mx.int32])
    return made


@cache
def _writer() -> CudaKernel:
    from lattice_cli.kernels.cuda_state import MARKED

    names = ("pool", "source", "numbers", "sizes", "mark")
    body = f"k::put_pieces((uint4*)pool, (const uint4*)source, numbers, sizes[0], sizes[1]);\n{MARKED}"
    return CudaKernel("put", ("portable.cuh", "prompt.cuh"), "", body, names, ("marked",), threads=256)


def grown_by_host(take: Any, make: Any, mark: Array) -> Array:
    """A larger pool with a pool's pieces, never both on the GPU: the old one goes through the host's memory. `take`
    gives the old one away, `make` the new one. Cost: the pieces twice over the bus.
    """
    import mlx.core as mx

    old = take()
    kept = np.array(old.view(mx.uint32))
    del old
    mx.clear_cache()
    pool = make()
    each = max(1, _AT_ONCE_BYTES // kept[0].nbytes)
    for begin in range(0, len(kept), each):
        part = kept[begin : begin + each]
        mark = write_pieces(pool, part, range(begin, begin + len(part)), mark)
        mx.eval(mark)
    return pool


def dump_row(row: Any, pools: Any) -> list[bytes]:
    """A row's pages and then its state, as they lie in the pools. Its mark must have been evaluated."""
    parts = [read_piece(pools.pages.array, number).tobytes() for number in row.page_numbers]
    if pools.states is not None:
        parts.append(read_piece(pools.states.array, row.slot).tobytes())
    return parts


def restore_row(row: Any, pools: Any, tokens: int, parts: Sequence[bytes]) -> None:
    """Fill a fresh row with what `dump_row` told. Raises: ValueError where sizes do not fit."""
    pages = -(-tokens // PAGE_TOKENS)
    sizes = [pools.pages.piece_bytes] * pages
    if pools.states is not None:
        sizes.append(pools.states.piece_bytes)
    if tokens <= 0 or [len(part) for part in parts] != sizes:
        raise ValueError("pieces of another size")
    row.room(tokens)
    row.own_state(tokens)
    row.tokens = tokens
    stored = [np.frombuffer(part, np.uint32) for part in parts]
    if pages:
        pools.mark = write_pieces(pools.pages.array, np.stack(stored[:pages]), row.page_numbers, pools.mark)
    if pools.states is not None:
        pools.mark = write_pieces(pools.states.array, stored[-1][None], [row.slot], pools.mark)
