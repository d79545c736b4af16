"""The prefix cache of a loaded model: how much memory it has, what keeps its states, whether it lies on the disk, too.

Thread: worker
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.model.card import ModelCard
from lattice_cli.settings import EngineSettings, Home

log = logging.getLogger("lattice.engine")


def open_prefix(network: Any, card: ModelCard, path: Path | None, settings: EngineSettings, home: Home) -> PrefixCache:
    """A cache for the one model that a process serves: its adapter and its template never change. `path` is where the
    model lies; one that lies nowhere has no tier on the disk.
    """
    from lattice_cli.engine.prefix_states import keeper_of
    from lattice_cli.kernels.limits import default_cache_bytes
    from lattice_cli.model.network import make_caches

    budget = default_cache_bytes() if settings.cache_bytes is None else settings.cache_bytes
    keeper = keeper_of(make_caches(network))
    if settings.cache_dir is None or path is None or budget == 0:
        return PrefixCache(keeper, budget)
    if not keeper.dumps:
        log.warning("`--cache-dir` is not used: the states of `%s` here cannot be written to files", card.served_id)
        return PrefixCache(keeper, budget)
    from lattice_cli.engine.prefix_disk import DiskShelf
    from lattice_cli.engine.prefix_key import prefix_key
    from lattice_cli.engine.prefix_saved import SavedPrefixCache

    return SavedPrefixCache(keeper, budget, DiskShelf(settings.cache_dir, prefix_key(path, card, home), budget))
