"""How the caches of a network are kept: copies that no batch can touch and that pin no batch's memory.

Of mlx-lm's caches, plain keys and values are kept as blocks of `BLOCK_TOKENS`, all layers in one array, so entries with
a common beginning share its blocks; every other cache (rotating, recurrent, of a kind unknown here) is kept whole. The
cache of a fused decoder is prefix_pages.py's.

Thread: worker
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from lattice_cli.engine.prefix_dump import PORTABLE, NotPortable, pack, pack_cache, unpack, unpack_cache
from lattice_cli.engine.prefix_kept import Dump, Keeper, Kept
from lattice_cli.engine.prefix_pages import PagesKeeper
from lattice_cli.kernels.state import DecoderState

BLOCK_TOKENS = 128
_TRIM = frozenset(("KVCache", "QuantizedKVCache"))


def keeper_of(caches: Sequence[Any]) -> Keeper:
    """For the caches of a network, of which `caches` are fresh ones."""
    if len(caches) == 1 and isinstance(caches[0], DecoderState):
        return PagesKeeper(caches[0].is_trimmable(), caches[0])
    return ArraysKeeper(all(_kind(cache) in _TRIM for cache in caches), tuple(map(_kind, caches)))


@dataclass(eq=False, frozen=True, slots=True)
class Block:
    """Keys and values of some tokens. `data` is (2 x layers, 1, heads, tokens, head_dim)."""

    data: mx.array


@dataclass(frozen=True, slots=True)
class Arrays:
    """`plain` are the numbers of the caches whose keys and values are in `blocks`; `others` are the rest by number."""

    plain: tuple[int, ...]
    blocks: tuple[Block, ...]
    others: dict[int, Any]


@dataclass(frozen=True, slots=True)
class ArraysKeeper:
    """For mlx-lm's caches, layer by layer, of these `kinds`."""

    trims: bool
    kinds: tuple[str, ...]

    def trimmable(self, caches: list[Any]) -> bool:
        return all(map(_trims, caches))

    def keep(self, caches: list[Any], tokens: int, like: Kept | None, shared: int) -> Kept | None:
        if any(getattr(cache, "offset", tokens) != tokens for cache in caches):
            return None
        plain = _plain(caches)
        others = {number: _twin(cache) for number, cache in enumerate(caches) if number not in plain}
        blocks = self._blocks([caches[number] for number in plain], tokens, like, shared) if plain else ()
        mx.async_eval([block.data for block in blocks], [_arrays(one) for one in others.values()])  # type: ignore[no-untyped-call]
        return _kept(tokens, Arrays(plain, blocks, others), self.trimmable(caches))

    def restore(self, kept: Kept, tokens: int) -> list[Any]:
        state: Arrays = kept.state
        caches: dict[int, Any] = {number: _twin(cache) for number, cache in state.others.items()}
        if tokens < kept.tokens:
            for cache in caches.values():
                cache.trim(kept.tokens - tokens)
        if state.plain:
            needed = state.blocks[: -(-tokens // BLOCK_TOKENS)]
            whole = mx.concatenate([block.data for block in needed], axis=3)[..., :tokens, :]
            from mlx_lm.models.cache import KVCache

            for place, number in enumerate(state.plain):
                cache = caches[number] = KVCache()  # type: ignore[no-untyped-call]
                cache.keys, cache.values, cache.offset = whole[2 * place], whole[2 * place + 1], tokens
        return [caches[number] for number in range(len(caches))]

    @property
    def dumps(self) -> bool:
        return PORTABLE.issuperset(self.kinds)

    def dump(self, kept: Kept) -> Dump | None:
        state: Arrays = kept.state
        parts: list[bytes] = []
        try:
            blocks = pack([block.data for block in state.blocks], parts)
            others = [[number, pack_cache(one, self.kinds[number], parts)] for number, one in state.others.items()]
        except NotPortable:
            return None
        return Dump({"plain": state.plain, "blocks": blocks, "others": others}, parts)

    def load(self, dump: Dump, tokens: int) -> Kept | None:
        try:
            plain, told = tuple(dump.meta["plain"]), dump.meta["blocks"]
            others = {number: unpack_cache(one, self.kinds[number], dump.parts) for number, one in dump.meta["others"]}
            blocks = tuple(Block(array) for array in unpack(told, dump.parts))
        except (NotPortable, KeyError, IndexError, TypeError):
            return None
        held = sum(block.data.shape[3] for block in blocks) if plain else tokens
        same = sorted((*plain, *others)) == list(range(len(self.kinds))) and held == tokens
        if not same or any(getattr(one, "offset", tokens) != tokens for one in others.values()):
            return None
        trims = all(self.kinds[number] == "KVCache" for number in plain) and all(map(_trims, others.values()))
        return _kept(tokens, Arrays(plain, blocks, others), trims)

    def _blocks(self, caches: list[Any], tokens: int, like: Kept | None, shared: int) -> tuple[Block, ...]:
        """Those of `like` as far as its tokens are the same, and new ones."""
        old: tuple[Block, ...] = like.state.blocks if like is not None else ()
        same = old[: min(shared, like.tokens if like is not None else 0) // BLOCK_TOKENS]
        start = len(same) * BLOCK_TOKENS
        if start == tokens:
            return same
        halves = [half[..., start:tokens, :] for cache in caches for half in (cache.keys, cache.values)]
        rest = mx.stack(halves)  # (2 x layers, 1, heads, tokens, head_dim)
        cuts = range(0, tokens - start, BLOCK_TOKENS)
        return (*same, *(Block(mx.contiguous(rest[..., cut : cut + BLOCK_TOKENS, :])) for cut in cuts))


def _kept(tokens: int, state: Arrays, trims: bool) -> Kept:
    pieces: dict[Hashable, int] = {block: block.data.nbytes for block in state.blocks}
    rest = sum(array.nbytes for one in state.others.values() for array in _arrays(one))
    return Kept(tokens, state, pieces | ({object(): rest} if rest else {}), trims)


def _kind(cache: Any) -> str:
    """The name of a cache of mlx-lm's own; a model's own kind has none here."""
    return type(cache).__qualname__ if type(cache).__module__ == "mlx_lm.models.cache" else ""


def _trims(cache: Any) -> bool:
    """Whether the state after fewer tokens can be had of a cache.

    UPSTREAM: mlx-lm 0.32's ConcatenateKVCache says so of itself, and appends to what it had before it was trimmed.
    """
    if _kind(cache) == "CacheList":
        return all(map(_trims, cache.caches))
    return _kind(cache) in _TRIM or (_kind(cache) == "RotatingKVCache" and cache.is_trimmable())


def _plain(caches: list[Any]) -> tuple[int, ...]:
    """The numbers of the caches that are plain keys and values of one shape and type."""
    found = [number for number, cache in enumerate(caches) if _is_plain(cache)]
    if not found:
        return ()
    alike = _likeness(caches[found[0]])
    return tuple(number for number in found if _likeness(caches[number]) == alike)


def _is_plain(cache: Any) -> bool:
    plain = _kind(cache) == "KVCache" and cache.keys is not None
    return bool(plain) and cache.keys.shape[3] == cache.values.shape[3] and cache.keys.dtype == cache.values.dtype


def _likeness(cache: Any) -> tuple[Any, ...]:
    return (*cache.keys.shape[:2], cache.keys.shape[3], cache.keys.dtype)


def _twin(value: Any) -> Any:
    """A cache of its own with the same contents. Arrays are values, so theirs are shared where they pin no more than
    what they hold.
    """
    if isinstance(value, mx.array):
        return mx.contiguous(value)
    if isinstance(value, list | tuple):
        return type(value)(map(_twin, value))
    if type(value).__module__.startswith("mlx_lm.models."):
        own = copy.copy(value)
        for name, one in vars(value).items():
            setattr(own, name, _twin(one))
        return own
    return value if isinstance(value, int | float | str | None) else copy.deepcopy(value)


def _arrays(value: Any) -> list[mx.array]:
    """All arrays of a cache."""
    if isinstance(value, mx.array):
        return [value]
    if isinstance(value, list | tuple):
        return [array for one in value for array in _arrays(one)]
    return [array for one in vars(value).values() for array in _arrays(one)] if hasattr(value, "__dict__") else []
