"""How the cache of a fused decoder is kept: a copy that shares its pages, each of which counts once.

Thread: worker
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from lattice_cli.engine.prefix_kept import Dump, Kept
from lattice_cli.kernels.state import DecoderState


@dataclass(frozen=True, slots=True)
class PagesKeeper:
    """For the one cache of a fused decoder; `fresh` is an empty one."""

    trims: bool
    fresh: DecoderState

    def trimmable(self, caches: list[Any]) -> bool:
        return bool(caches[0].is_trimmable())

    def keep(self, caches: list[Any], tokens: int, like: Kept | None, shared: int) -> Kept | None:
        state: DecoderState = caches[0]
        if len(state.rows) != 1 or state.offset != tokens:
            return None
        own = copy.deepcopy(state)
        return Kept(tokens, own, dict(own.rows[0].pieces()), own.is_trimmable())

    def restore(self, kept: Kept, tokens: int) -> list[Any]:
        state: DecoderState = copy.deepcopy(kept.state)
        if tokens < kept.tokens:
            state.trim(kept.tokens - tokens)
        return [state]

    @property
    def dumps(self) -> bool:
        return True

    def dump(self, kept: Kept) -> Dump | None:
        state: DecoderState = kept.state
        mx.eval(state.state)
        return Dump("pages", state.rows[0].dump())

    def load(self, dump: Dump, tokens: int) -> Kept | None:
        own = self.fresh.restored(tokens, dump.parts) if dump.meta == "pages" else None
        return None if own is None else Kept(tokens, own, dict(own.rows[0].pieces()), self.trims)
