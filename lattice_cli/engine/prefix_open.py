"""The prefix cache of a loaded network: how much memory it has, and what keeps its states.

Thread: worker
"""

from __future__ import annotations

from typing import Any

from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.settings import EngineSettings


def open_prefix(network: Any, settings: EngineSettings) -> PrefixCache:
    """A cache that is empty, for the one model that a process serves: its adapter and its template never change."""
    from lattice_cli.engine.prefix_states import keeper_of
    from lattice_cli.kernels.limits import default_cache_bytes
    from lattice_cli.model.network import make_caches

    budget = default_cache_bytes() if settings.cache_bytes is None else settings.cache_bytes
    return PrefixCache(keeper_of(make_caches(network)), budget)
