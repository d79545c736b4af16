"""Draws from a vocabulary, in mlx's operations; install.py puts native/draw.h in the place of both.

Thread: worker
"""

from __future__ import annotations

import mlx.core as mx

BLOCK_IDS = 32


def draw_likeliest(logits: mx.array, noise: mx.array, scale: float, min_p: float, top_p: float) -> mx.array:
    """One id a row, (rows,), among as many of the likeliest of `logits` (rows, vocabulary) as `noise` (rows, count) has
    numbers: `scale`d, those kept that `min_p` (0: all) and `top_p` (1: all) keep, the largest after adding the noise.
    The noise is Gumbel's, so that is a draw by their softmax.
    """
    kept, ids = likeliest(logits, noise.shape[-1])
    kept = kept.astype(mx.float32) * scale  # (rows, count)
    if min_p > 0.0:
        kept = mx.where(kept < kept[:, :1] + mx.log(mx.array(min_p)), -mx.inf, kept)
    if top_p < 1.0:
        kept = nucleus(kept, top_p)
    return mx.take_along_axis(ids, mx.argmax(kept + noise, axis=-1, keepdims=True), axis=-1)[:, 0]


def draw_kept(logits: mx.array, key: mx.array, scale: float, min_p: float, top_p: float) -> mx.array:
    """One id a row, (rows,), of `logits` (rows, vocabulary), `scale`d: a draw with `key` by the softmax of those that
    `min_p` (0: all) and `top_p` (1: all) keep.

    PERF: a sort of the whole vocabulary: 4 ms for 49,152 ids and 13 for 151,936 on a CPU (mlx 0.32).
    """
    kept = logits.astype(mx.float32) * scale
    ids: mx.array | None = None
    if top_p < 1.0:
        kept, ids = likeliest(kept, kept.shape[-1])
    if min_p > 0.0:
        kept = mx.where(kept < mx.max(kept, axis=-1, keepdims=True) + mx.log(mx.array(min_p)), -mx.inf, kept)
    if top_p < 1.0:
        kept = nucleus(kept, top_p)
    drawn = mx.random.categorical(kept, axis=-1, key=key)  # (rows,)
    return drawn if ids is None else mx.take_along_axis(ids, drawn[..., None], axis=-1).squeeze(-1)


def likeliest(values: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """The `count` largest of `values` (rows, vocabulary), largest first, and their ids, both (rows, count).

    PERF: they lie in the `count` blocks with the largest maxima, so only these are sorted: 0.1 ms where partitioning
    49,152 values takes 0.6 (mlx 0.32 on a CPU).
    """
    rows, vocabulary = values.shape
    blocks = -(-vocabulary // BLOCK_IDS)
    if count * 4 > blocks:
        order = mx.argsort(-values, axis=-1)[:, :count]
        return mx.take_along_axis(values, order, axis=-1), order
    fill = blocks * BLOCK_IDS - vocabulary
    tiled = mx.pad(values, [(0, 0), (0, fill)], constant_values=-mx.inf) if fill else values
    tiled = tiled.reshape(rows, blocks, BLOCK_IDS)
    best = mx.argpartition(-mx.max(tiled, axis=-1), kth=count - 1, axis=-1)[:, :count]
    best = mx.sort(best, axis=-1)  # ids go up, so the lowest of equals comes first
    near = mx.take_along_axis(tiled, best[..., None], axis=1).reshape(rows, count * BLOCK_IDS)
    order = mx.argsort(-near, axis=-1)[:, :count]
    ids = mx.take_along_axis(best, order // BLOCK_IDS, axis=-1) * BLOCK_IDS + order % BLOCK_IDS
    return mx.take_along_axis(near, order, axis=-1), ids


def nucleus(logits: mx.array, top_p: float) -> mx.array:
    """Keep the smallest set of most likely values whose probability reaches `top_p`; the first always stays. `logits`
    go down.
    """
    probabilities = mx.softmax(logits, axis=-1)
    before = mx.cumsum(probabilities, axis=-1) - probabilities
    return mx.where(before >= max(top_p, 1e-7), -mx.inf, logits)
