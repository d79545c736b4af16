"""Where rows of a fused decoder on an NVIDIA GPU have their memory: pools of pages and of recurrent states.

The same scheme as native/pages.h on a CPU: a row appends in place, copies share pages and states, and who writes to
what another has too gets a copy first. Kernels write into the pools while mlx knows nothing of it, so everything that
touches them is a chain: each call takes the `mark` of the one before and leaves another.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from lattice_cli.kernels.cuda_sizes import PAGE_TOKENS, Sizes
from lattice_cli.kernels.cuda_source import CudaKernel

Array = Any  # mlx.core.array: this file must be importable without mlx

_FIRST, _FIRST_BYTES = 16, 256 << 20  # at most, of a new pool
_MORE_BYTES, _MORE_SHARE = 512 << 20, 4  # a pool doubles up to so much more, then grows by one part in so many
_DEVICE_SHARE = 0.95  # of the GPU's memory, that pools may take with everything else
MARK_NUMBERS = 64  # more than 8 bytes: mlx keeps smaller arrays in the host's memory
MARKED = "if (k::block_index() == 0 && k::thread_index() < 64) marked[k::thread_index()] = 0;\n"


class Piece:
    """One piece of a pool, by its number, and how many sequences have it."""

    __slots__ = ("nbytes", "number", "pool", "users")

    def __init__(self, pool: Pool, number: int) -> None:
        self.pool = pool
        self.number = number
        self.nbytes = pool.piece_bytes
        self.users = 1

    def take(self) -> Piece:
        self.users += 1
        return self

    def leave(self) -> None:
        self.users -= 1
        if self.users == 0:
            self.pool.free.append(self.number)


class Pool:
    """Pieces of one size in one array, which grows when none is free: it doubles while it is small."""

    def __init__(self, numbers: int, dtype: Any) -> None:
        import mlx.core as mx

        self.numbers = numbers  # of a piece, a multiple of 16 bytes
        self._dtype = dtype
        self.piece_bytes = numbers * dtype.size
        first = max(2, min(_FIRST, _FIRST_BYTES // self.piece_bytes))
        self.array: Array = mx.zeros((first, numbers), dtype=dtype)
        self.free = list(range(first - 1, -1, -1))

    def get(self, mark: Array) -> Piece:
        """A piece with whatever was in it. `mark`: what writes to the pool until now."""
        if not self.free:
            self._grow(mark)
        return Piece(self, self.free.pop())

    def _grow(self, mark: Array) -> None:
        import mlx.core as mx

        mx.eval(mark)
        count = int(self.array.shape[0])
        more = max(1, min(count, max(_MORE_BYTES // self.piece_bytes, count // _MORE_SHARE)))
        whole = (count + more, self.numbers)
        if has_room((count + more) * self.piece_bytes):
            self.array = mx.concatenate([self.array, mx.zeros((more, self.numbers), dtype=self._dtype)])
        else:
            from lattice_cli.kernels.cuda_pieces import grown_by_host

            self.array = grown_by_host(self._take, lambda: mx.zeros(whole, dtype=self._dtype), mark)
        mx.eval(self.array)
        self.free.extend(range(count + more - 1, count - 1, -1))

    def _take(self) -> Array:
        array, self.array = self.array, None
        return array


def has_room(nbytes: int) -> bool:
    """Whether the GPU can have so many bytes beside what this process has."""
    import mlx.core as mx

    from lattice_cli.kernels.limits import device_bytes

    return mx.get_active_memory() + nbytes <= _DEVICE_SHARE * device_bytes()


class Pools:
    """Pages of keys and values, and recurrent states: the delta rule's and the convolution's inputs, side by side."""

    def __init__(self, sizes: Sizes) -> None:
        import mlx.core as mx

        self.sizes = sizes
        self.layers = sum(sizes.pattern)
        self.pages = Pool(sizes.page_numbers, mx.float16 if sizes.half else mx.bfloat16)
        self.states: Pool | None = None
        self.mark: Array = mx.zeros((MARK_NUMBERS,), dtype=mx.int32)
        if self.layers:
            self.delta_numbers = self.layers * sizes.values * sizes.key_dim
            self.tap_numbers = self.layers * 4 * sizes.channels
            self.states = Pool(self.delta_numbers + self.tap_numbers, mx.float32)
            self.blank: Piece | None = self.states.get(self.mark)  # zeros, as the pool begins: every new row's state
        else:
            self.blank = None
        self._copy: CudaKernel | None = None
        self._numbers = lru_cache(maxsize=4096)(_numbers)

    def ints(self, numbers: Iterable[int], least: int = 4) -> Array:
        """Whole numbers on the GPU, at least `least`: mlx keeps arrays of 8 bytes and less in the host's memory. The
        same ones are the same array: making one costs the host more than a kernel.
        """
        return self._numbers(tuple(numbers), least)

    def append(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        """Room for so many tokens more in each row, and no page or state that is written shared with another."""
        pages: list[tuple[int, int]] = []
        states: list[tuple[int, int]] = []
        for row, count in zip(rows, counts, strict=True):
            pages += row.room(count)
            states += row.own_state(count)
        self._run_copies(self.pages, pages)
        if self.states is not None:
            self._run_copies(self.states, states)
        for row, count in zip(rows, counts, strict=True):
            row.tokens += count

    def _run_copies(self, pool: Pool, pairs: list[tuple[int, int]]) -> None:
        if not pairs:
            return
        import mlx.core as mx

        words = pool.piece_bytes // 16
        if self._copy is None:
            names = ("pool", "pairs", "sizes", "mark")
            body = f"k::copy_pieces((uint4*)pool, pairs, sizes[0], sizes[1]);\n{MARKED}"
            self._copy = CudaKernel("copy", ("portable.cuh", "prompt.cuh"), "", body, names, ("marked",), threads=256)
        flat = [number for pair in pairs for number in pair]
        inputs = [pool.array, self.ints(flat), self.ints([len(pairs), words]), self.mark]
        blocks = min(1024, -(-len(pairs) * words // 256))
        self.mark = self._copy(inputs, blocks, [(MARK_NUMBERS,)], [mx.int32])[0]


class Row:
    """One row's pages and state. `tokens` are in them."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._pages: list[Piece] = []
        self._state: Piece | None = pools.blank.take() if pools.blank is not None else None
        self.tokens = 0

    @property
    def can_trim(self) -> bool:
        return self._state is None

    @property
    def nbytes(self) -> int:
        return sum(size for _, size in self.pieces())

    @property
    def page_numbers(self) -> list[int]:
        return [page.number for page in self._pages]

    @property
    def slot(self) -> int:
        return self._state.number if self._state is not None else 0

    def pieces(self) -> Iterator[tuple[Piece, int]]:
        """Its parts with their bytes, which other rows may have, too; a state comes last."""
        yield from ((page, page.nbytes) for page in self._pages)
        if self._state is not None:
            yield self._state, self._state.nbytes

    def copy(self) -> Row:
        twin = Row(self._pools)
        if twin._state is not None and self._state is not None:
            twin._state.leave()
            twin._state = self._state.take()
        twin._pages = [page.take() for page in self._pages]
        twin.tokens = self.tokens
        return twin

    def dump(self) -> list[bytes]:
        """Its memory: pages in order, then the state. The pools' mark must have been evaluated."""
        from lattice_cli.kernels.cuda_pieces import dump_row

        return dump_row(self, self._pools)

    def trim(self, tokens: int) -> None:
        """Forget all but the first `tokens`; only for rows without a recurrent state."""
        keep = -(-tokens // PAGE_TOKENS)
        _leave(self._pages[keep:])
        del self._pages[keep:]
        self.tokens = tokens

    def room(self, count: int) -> list[tuple[int, int]]:
        """Pages for `count` tokens more; what must be copied for it."""
        pairs: list[tuple[int, int]] = []
        pools = self._pools
        last, inside = divmod(self.tokens, PAGE_TOKENS)
        if count and inside and self._pages[last].users > 1:
            old, self._pages[last] = self._pages[last], pools.pages.get(pools.mark)
            pairs.append((old.number, self._pages[last].number))
            old.leave()
        while len(self._pages) * PAGE_TOKENS < self.tokens + count:
            self._pages.append(pools.pages.get(pools.mark))
        return pairs

    def own_state(self, count: int) -> list[tuple[int, int]]:
        """A state that nobody else has; what must be copied for it."""
        old = self._state
        if old is None or not count or (old.users == 1 and old is not self._pools.blank):
            return []
        assert self._pools.states is not None
        self._state = self._pools.states.get(self._pools.mark)
        old.leave()
        return [(old.number, self._state.number)]

    def __del__(self) -> None:
        _leave(self._pages)
        if self._state is not None:
            self._state.leave()


def _leave(pieces: Iterable[Piece]) -> None:
    for piece in pieces:
        piece.leave()


def _numbers(numbers: tuple[int, ...], least: int) -> Array:
    import mlx.core as mx

    return mx.array([*numbers, *([0] * max(0, least - len(numbers)))], dtype=mx.int32)
