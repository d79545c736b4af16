"""The prefix cache of a loaded network: how much memory it has, and what keeps its states.

Thread: worker
"""

from __future__ import annotations

from typing import Any

from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.settings import EngineSettings

MEMORY_SHARE = 4  # the cache has at most one such part of all memory, where no size is named


def open_prefix(network: Any, settings: EngineSettings) -> PrefixCache:
    """A cache that is empty, for the one model that a process serves: its adapter and its template never change."""
    from lattice_cli.engine.prefix_states import keeper_of
    from lattice_cli.model.network import make_caches

    budget = default_bytes() if settings.cache_bytes is None else settings.cache_bytes
    return PrefixCache(keeper_of(make_caches(network)), budget)


def default_bytes() -> int:
    """A quarter of the memory that states lie in: the GPU's where it has its own."""
    import mlx.core as mx

    from lattice_cli.kernels.limits import memory_bytes

    info = mx.device_info()
    device = next((int(info[name]) for name in ("memory_size", "total_memory") if info.get(name)), None)
    return (memory_bytes() if device is None else device) // MEMORY_SHARE
