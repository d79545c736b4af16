"""The plan of the fused decoding step on an NVIDIA GPU: a network's sizes, and how each product is shared among warps
and blocks. cuda/step.cuh is compiled for one plan.

Thread: worker
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PAGE_TOKENS = 128
MOST_ROWS = 32
MOST_PARTS = 64  # of one row's context, for attention
_PIPES = (128, 64, 32, 16)  # steps that the weights of a block's warps are ahead, all together; each two at least
_RESULTS = 4096  # 16 kB
_ROUND = 180  # what a round of units costs beside its columns, in columns
_ALIGNED = 256  # bytes
_MATRICES = ("IN", "OUT", "GATE", "UP", "DOWN")
_NAMES = (*_MATRICES, "IN_NORM", "POST_NORM", "Q_NORM", "K_NORM", "CONV", "A_LOG", "DT_BIAS", "OUT_NORM")


class UnknownLayers(Exception):
    """What a network has that the fused step does not know."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a matrix' weights are stored. `group` is 64 where there are no groups."""

    bits: int
    group: int

    def nbytes(self, rows: int, columns: int) -> int:
        return rows * columns * self.bits // 8

    def subs(self, widths: Sequence[int]) -> int:
        """How many times 32 columns a warp takes in one step, of matrices as wide as `widths`: 64 bytes of a row, or 32
        of 4 bits where a width is no multiple of 128.
        """
        if self.bits == 4:
            return 2 if any(width % 128 for width in widths) else 4
        return 16 // self.bits

    def slot_bytes(self, subs: int) -> int:
        """`Layout::SLOT` of cuda/product.cuh."""
        scales = 0 if self.bits == 16 else 8 if 32 * subs // self.group == 4 else 4
        return 16 * 4 * subs * self.bits + 32 * scales


@dataclass(frozen=True, slots=True)
class Sizes:
    """A network's shape. Widths are in numbers, not bytes."""

    half: bool  # float16, else bfloat16
    linear: Layout
    embedding: Layout
    head: Layout
    hidden: int
    intermediate: int
    vocabulary: int
    eps: float
    pattern: tuple[bool, ...]  # of layers: recurrent ones
    heads: int
    kv_heads: int
    head_dim: int
    turned: int  # pairs of columns that positions turn
    scale: float
    gated: bool
    head_norm: bool
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def attention_layers(self) -> int:
        return len(self.pattern) - sum(self.pattern)

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def delta_rows(self) -> int:
        return self.channels + self.values + 2 * self.value_heads

    @property
    def attention_rows(self) -> int:
        return (self.heads * (2 if self.gated else 1) + 2 * self.kv_heads) * self.head_dim

    @property
    def joined(self) -> int:
        return max(self.delta_rows if any(self.pattern) else 0, self.attention_rows)

    @property
    def mixed(self) -> int:
        return max(self.values if any(self.pattern) else 0, self.heads * self.head_dim)

    @property
    def page_numbers(self) -> int:
        """Of a page: keys and values of all attention layers for PAGE_TOKENS tokens."""
        return self.attention_layers * 2 * self.kv_heads * PAGE_TOKENS * self.head_dim

    @property
    def together(self) -> int:
        """Query heads that one unit of attention takes."""
        per_key = self.heads // self.kv_heads
        if per_key <= 4:
            return per_key
        return next(count for count in (4, 3, 2, 1) if per_key % count == 0)


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
            units = _whole(_whole(_whole(rows, tile), warps // shares) * splits, blocks)
            own = _whole(columns // splits // step, shares) * step
            cost = units * (own + _ROUND) + 24 * (splits - 1) + stages(shares, units)
            key = (most is not None and columns // splits > most, cost)
            if best is None or key < best[0]:
                best = (key, Sharing(shares, splits))
    if best is None:
        raise UnknownLayers(f"a matrix with {columns} columns")
    return best[1]


@dataclass(frozen=True, slots=True)
class Memory:
    """A block's shared memory."""

    chunk: int  # columns of activations that are there at once
    depth: int  # steps that a warp's weights are ahead
    results: int  # numbers kept of units whose columns come in several pieces
    nbytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the kernel is compiled with, for at most `8 * tiles` rows."""

    sizes: Sizes
    offsets: dict[str, dict[str, int]]  # of tensors in a layer's buffer: "Delta" and "Attention"
    tiles: int
    warps: int
    blocks: int
    shared_bytes: int  # what a block may have

    @property
    def rows(self) -> int:
        return 8 * self.tiles

    @property
    def memory(self) -> Memory:
        """As much ahead as lets the widest activations of a block be there at once. Where that is less than 64 steps
        for its warps together, they come in pieces: few bytes on their way cost more than putting them there again.
        """
        sizes, sharing = self.sizes, self._split()
        unit = math.lcm(128, sizes.value_dim if any(sizes.pattern) else 1)
        widths = (sizes.hidden, sizes.intermediate // sharing["DOWN"].splits, sizes.mixed // sharing["OUT"].splits)
        widest = _whole(max(widths), unit) * unit
        if widest <= self._most(_PIPES[0], 0, unit):
            return self._memory(widest, _PIPES[0], 0)
        for pipe in (pipe for pipe in _PIPES[1:] if pipe >= 2 * self.warps):
            if widest <= self._most(pipe, 0, unit):
                return self._memory(widest, pipe, 0)
            for results in (_RESULTS, 0):
                most = self._most(pipe, results, unit)
                if most >= unit:
                    pieces = _whole(widest, most)
                    return self._memory(_whole(_whole(widest, pieces), unit) * unit, pipe, results)
        raise UnknownLayers(f"{self.shared_bytes} bytes of shared memory")

    def _most(self, pipe: int, results: int, unit: int) -> int:
        """Columns of activations for which there is room."""
        columns = self.shared_bytes // (2 * self.rows) // unit * unit
        while columns > 0 and self._memory(columns, pipe, results).nbytes > self.shared_bytes:
            columns -= unit
        return columns

    def _memory(self, chunk: int, pipe: int, results: int) -> Memory:
        """`Shared::BYTES` of cuda/product.cuh, and room for attention."""
        sizes, depth = self.sizes, pipe // self.warps
        sums = self.rows * (chunk // 32) if self._summed else 0
        floats = self.warps * self.tiles * 4 * 32 + 1024 + sums + results
        merged = self.warps * sizes.together * (sizes.head_dim + 2) + (sizes.together + 2) * sizes.head_dim
        nbytes = 4 * floats + self.warps * depth * self._slot + max(2 * self.rows * (chunk + 32), 4 * merged)
        return Memory(chunk, depth, results, nbytes)

    @property
    def _summed(self) -> bool:
        """Whether sums of groups of activations are in shared memory."""
        return self.tiles > 1 and min(self.sizes.linear.bits, self.sizes.head.bits) < 16

    @property
    def _slot(self) -> int:
        sizes = self.sizes
        return max(sizes.linear.slot_bytes(self._subs), sizes.head.slot_bytes(self._head_subs))

    @property
    def _subs(self) -> int:
        s = self.sizes
        return s.linear.subs([s.hidden, s.intermediate, *self._mixed_widths])

    @property
    def _head_subs(self) -> int:
        return self.sizes.head.subs([self.sizes.hidden])

    @property
    def _mixed_widths(self) -> list[int]:
        """Columns of the output projections."""
        s = self.sizes
        return [s.values] * any(s.pattern) + [s.heads * s.head_dim] * (not all(s.pattern))

    def _split(self) -> dict[str, Sharing]:
        """Of the products whose columns blocks may share."""
        s, unit, step = self.sizes, self.sizes.value_dim if any(self.sizes.pattern) else 32, 32 * self._subs
        most = max(unit, self._most(_PIPES[1], 0, 128))
        return {
            "OUT": share(s.hidden, math.gcd(*self._mixed_widths), step, self.blocks, self.warps, unit=unit, most=most),
            "DOWN": share(s.hidden, s.intermediate, step, self.blocks, self.warps, most=most),
        }

    def sharing(self) -> dict[str, Sharing]:
        s, memory = self.sizes, self.memory
        ins = [s.delta_rows] * any(s.pattern) + [s.attention_rows] * (not all(s.pattern))

        def whole(rows: int, step: int, tile: int = 16) -> Sharing:
            def stages(shares: int, units: int) -> float:
                """Pieces of the columns are put into shared memory once for as many units as there are results for."""
                pieces = _whole(s.hidden, memory.chunk)
                results = self.warps // shares * self.tiles * 32 * 4
                return _whole(units, max(1, memory.results // results)) * pieces * 180 if pieces > 1 else 0

            return share(rows, s.hidden, step, self.blocks, self.warps, tile=tile, stages=stages)

        return self._split() | {
            "IN": whole(min(ins), 32 * self._subs),
            "UP": whole(s.intermediate, 32 * self._subs, tile=8),
            "HEAD": whole(s.vocabulary, 32 * self._head_subs),
        }

    def work_numbers(self) -> int:
        """`Step::WORK` of cuda/step.cuh: 4-byte numbers of workspace."""
        s, sharing = self.sizes, self.sharing()
        per_row = 2 * s.hidden + s.joined + (sharing["OUT"].splits + sharing["DOWN"].splits) * s.hidden + s.mixed
        per_row += s.heads * MOST_PARTS * (s.head_dim + 2) + (s.intermediate + s.mixed + s.hidden) // 2
        return self.rows * per_row

    def source(self) -> str:
        """`struct C` for cuda/step.cuh."""
        s, memory = self.sizes, self.memory
        numbers: dict[str, int] = {
            "NT": self.tiles, "WARPS": self.warps, "CHUNK": memory.chunk, "DEPTH": memory.depth, "SLOT": self._slot,
            "RESULTS": memory.results, "BITS": s.linear.bits, "GROUP": s.linear.group, "SUBS": self._subs,
            "EMBEDDING_BITS": s.embedding.bits, "EMBEDDING_GROUP": s.embedding.group, "HEAD_BITS": s.head.bits,
            "HEAD_GROUP": s.head.group, "HEAD_SUBS": self._head_subs, "HIDDEN": s.hidden,
            "INTERMEDIATE": s.intermediate, "VOCABULARY": s.vocabulary, "LAYERS": len(s.pattern), "HEADS": s.heads,
            "KV_HEADS": s.kv_heads, "HEAD_DIM": s.head_dim, "TURNED": s.turned, "KEY_HEADS": s.key_heads,
            "VALUE_HEADS": s.value_heads, "KEY_DIM": s.key_dim, "VALUE_DIM": s.value_dim,
            "ATTENTION_LAYERS": s.attention_layers, "DELTA_LAYERS": sum(s.pattern), "PAGE": PAGE_TOKENS,
            "MOST_PARTS": MOST_PARTS,
        }  # fmt: skip
        for name, shared in self.sharing().items():
            numbers[f"{name}_SHARES"] = shared.shares
            if name in ("OUT", "DOWN"):
                numbers[f"{name}_SPLITS"] = shared.splits
        longs = dict(
            zip(
                ("EMBEDDING_SCALES", "EMBEDDING_BIASES"),
                matrix_places(s.embedding, s.vocabulary, s.hidden),
                strict=True,
            )
        )
        longs |= dict(zip(("HEAD_SCALES", "HEAD_BIASES"), matrix_places(s.head, s.vocabulary, s.hidden), strict=True))
        lines = ["struct C {"]
        lines += [f"  static constexpr int {name} = {value};" for name, value in numbers.items()]
        lines += [f"  static constexpr long {name} = {value};" for name, value in longs.items()]
        flags = {"HALF": s.half, "GATED": s.gated, "HEAD_NORM": s.head_norm, "SUMMED": self._summed}
        for name, yes in flags.items():
            lines.append(f"  static constexpr bool {name} = {str(yes).lower()};")
        for name, real in {"EPS": s.eps, "SCALE": s.scale}.items():
            lines.append(f"  static constexpr float {name} = {real!r}f;")
        lines += ["  struct Place { long weights, scales, biases; };", "  struct Places {"]
        lines += [f"    {'Place' if name in _MATRICES else 'long'} {name.lower()};" for name in _NAMES]
        lines += [
            "  };",
            "  DEV static const Places& places(bool recurrent) {",
            "    static constexpr Places all[2] = {",
        ]
        lines += [f"      {{{_listed(self.offsets.get(kind, {}))}}}," for kind in ("Attention", "Delta")]
        lines += ["    };", "    return all[recurrent];", "  }"]
        words = [
            sum(1 << bit for bit, yes in enumerate(s.pattern[i : i + 64]) if yes) for i in range(0, len(s.pattern), 64)
        ]
        tests = " : ".join(f"i < {64 * (n + 1)} ? {word}ull >> (i - {64 * n}) & 1" for n, word in enumerate(words))
        lines.append(f"  DEV static bool recurrent(int i) {{ return {tests} : 0; }}")
        return "\n".join([*lines, "};", ""])


def matrix_places(layout: Layout, rows: int, columns: int) -> tuple[int, int]:
    """Where scales and biases begin in a buffer that holds one matrix."""
    if layout.bits == 16:
        return 0, 0
    scales = aligned(layout.nbytes(rows, columns))
    return scales, scales + aligned(2 * rows * columns // layout.group)


def _listed(places: dict[str, int]) -> str:
    """The fields of `Places`; 0 for what a layer of this kind has not."""
    found = []
    for name in _NAMES:
        three = [str(places.get(f"{name}{part}", 0)) for part in ("", "_SCALES", "_BIASES")]
        found.append(f"{{{', '.join(three)}}}" if name in _MATRICES else three[0])
    return ", ".join(found)


def _whole(count: int, size: int) -> int:
    """Pieces of `size` that hold `count`."""
    return -(-count // size)


def aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED


def tail_bytes(layers: int, rows: int) -> int:
    """`Step::TAIL` of cuda/step.cuh at most: arguments, the layers' addresses, two numbers of each row."""
    return aligned(160 + 8 * layers + 8 * rows)
