"""What a row of a loaded network takes of memory, read from its caches after one token; and how much there is.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx

from lattice_cli.engine.memory import Growing, Memory, RowCost, size_text
from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.errors import UsageError
from lattice_cli.kernels.limits import device_bytes
from lattice_cli.kernels.state import DecoderState
from lattice_cli.model.card import ModelCard
from lattice_cli.model.network import make_caches
from lattice_cli.settings import EngineSettings

ROWS_SHARE = 0.75  # of what the weights leave; the rest is for activations, logits and everybody else
BUFFER_SHARE = 8  # of that, mlx may keep freed buffers of one part in so many
FEWEST_TOKENS = 64  # a smaller window is of no use
PAGE_TOKENS = 128  # native/pages.h


def cost_of(network: Any) -> RowCost:
    """Cost: a forward pass over one token."""
    caches = make_caches(network)
    mx.eval(network(mx.array([[0]]), cache=caches), [cache.state for cache in caches])
    if len(caches) == 1 and isinstance(caches[0], DecoderState):
        return _paged(caches[0])
    growing: dict[tuple[int, int | None], int] = {}
    fixed = 0
    for cache in _parts(caches):
        keys = getattr(cache, "keys", None)
        if keys is None:
            fixed += _nbytes(cache.state)
            continue
        capacity = (keys[0] if isinstance(keys, tuple | list) else keys).shape[2]
        key = (int(getattr(cache, "step", 1)), getattr(cache, "max_size", None))
        growing[key] = growing.get(key, 0) + (_nbytes(keys) + _nbytes(cache.values)) // capacity
    parts = tuple(Growing(size, granule, most) for (granule, most), size in growing.items())
    return RowCost(parts, fixed, padded=True)


def _paged(state: DecoderState) -> RowCost:
    (row,) = state.rows
    sizes = [size for _, size in row.pieces()]
    fixed = 0 if row.can_trim else sizes.pop()
    return RowCost(tuple(Growing(size // PAGE_TOKENS, PAGE_TOKENS) for size in sizes), fixed, padded=False)


def _parts(caches: list[Any]) -> Iterator[Any]:
    for cache in caches:
        yield from getattr(cache, "caches", None) or (cache,)


def _nbytes(arrays: Any) -> int:
    if isinstance(arrays, tuple | list):
        return sum(map(_nbytes, arrays))
    return int(getattr(arrays, "nbytes", 0))


def open_memory(
    network: Any, card: ModelCard, weights_bytes: int, settings: EngineSettings, prefix: PrefixCache
) -> tuple[Memory, ModelCard]:
    """The memory for rows, and a card whose window fits it. mlx's own store of freed buffers is bounded with it.

    Raises: UsageError where not even a short reply would fit.
    """
    cost = cost_of(network)
    usual = int(max(0, device_bytes() - weights_bytes) * ROWS_SHARE)
    limit = usual if settings.memory_bytes is None else settings.memory_bytes
    mx.set_cache_limit(max(limit // BUFFER_SHARE, 64 << 20))
    window = cost.most_tokens(limit, card.context_tokens)
    if window < min(FEWEST_TOKENS, card.context_tokens):
        raise UsageError(
            f"there are {size_text(limit)} of memory for replies, and one of {FEWEST_TOKENS} tokens takes "
            f"{size_text(cost.batch((FEWEST_TOKENS,)))}",
            param="--memory-limit",
            hint="choose a smaller model, or name more with --memory-limit",
        )
    if window < card.context_tokens:
        note = (
            f"the context window is {window} tokens instead of {card.context_tokens}: "
            f"more would not fit into {size_text(limit)} of memory (see --memory-limit)"
        )
        card = replace(card, context_tokens=window, notes=(*card.notes, note))
    return Memory(cost, limit, card.context_tokens, lambda: prefix.stats.bytes, prefix.release), card
