"""How a product is shared among warps and blocks of an NVIDIA GPU (cuda/product.cuh).

Thread: worker
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from lattice_cli.kernels.cuda_sizes import UnknownLayers

_ROUND = 180  # what a round of units costs beside its columns, in columns


@dataclass(frozen=True, slots=True)
class Sharing:
    """`shares` warps share a tile's columns, `splits` blocks do so as well."""

    shares: int
    splits: int


def share(
    rows: int,
    columns: int,
    step: int,
    blocks: int,
    warps: int,
    *,
    tile: int = 16,
    unit: int = 32,
    most: int | None = None,
    stages: Callable[[int, int], float] = lambda _shares, _units: 0,
) -> Sharing:
    """The cheapest way to share a product among `blocks` blocks of `warps` warps. `step`: columns that a warp takes at
    once. With `most` several blocks may share the columns, so that one has no more than that if it can be; `unit`:
    columns that stay together then. `stages`: what else so many units of a block cost, by the warps that share.

    A round of all blocks costs the columns that a warp reads, and some that stand for what each round costs anyway.
    """
    best: tuple[tuple[bool, float], Sharing] | None = None
    for splits in (1, 2, 4, 8) if most else (1,):
        if columns % (splits * math.lcm(unit, step)):
            continue
        for shares in (1, 2, 4, 8, 16):
            if shares > warps:
                continue
            units = whole(whole(whole(rows, tile), warps // shares) * splits, blocks)
            own = whole(columns // splits // step, shares) * step
            cost = units * (own + _ROUND) + 24 * (splits - 1) + stages(shares, units)
            key = (most is not None and columns // splits > most, cost)
            if best is None or key < best[0]:
                best = (key, Sharing(shares, splits))
    if best is None:
        raise UnknownLayers(f"a matrix with {columns} columns")
    return best[1]


def whole(count: int, size: int) -> int:
    """Pieces of `size` that hold `count`."""
    return -(-count // size)
