"""Numbers of a loaded network for those who compare: logits of given token ids.

Thread: any (each call has a thread of its own)
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from lattice_cli.model.card import ModelCard, ModelSource
from lattice_cli.settings import Home


def measure_logits(
    source: ModelSource, home: Home, prompts: Sequence[Sequence[int]]
) -> tuple[ModelCard, list[np.ndarray[Any, Any]]]:
    """The card, and for each prompt float32 logits (tokens, vocabulary), as the engine's network gives them.

    Blocks: loads the model, reads every prompt whole. Raises: ModelError, InstallError.
    """
    # A thread that used mlx may do nothing with it after it cleared its streams, so it is not the caller's.
    with ThreadPoolExecutor(1, thread_name_prefix="lattice-measure") as pool:
        return pool.submit(_logits, source, home, prompts).result()


def _logits(
    source: ModelSource, home: Home, prompts: Sequence[Sequence[int]]
) -> tuple[ModelCard, list[np.ndarray[Any, Any]]]:
    from lattice_cli.kernels import blas

    blas.preload(home)
    import mlx.core as mx

    from lattice_cli.model.load import load

    try:
        loaded = load(source, home)
        found = [np.array(loaded.network(mx.array([list(ids)]))[0].astype(mx.float32)) for ids in prompts]
        return loaded.card, found
    finally:
        mx.clear_streams()
