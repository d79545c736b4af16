"""The plan of the fused decoding step on an NVIDIA GPU: a network's sizes, and how each product is shared among warps
and blocks. cuda/step.cuh is compiled for one plan.

Thread: worker
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PAGE_TOKENS = 128
MOST_ROWS = 32
MOST_PARTS = 64  # of one row's context, for attention
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

    @property
    def steps(self) -> int:
        return self.group // 32 if self.bits < 16 else 1


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
    layout: Layout,
    blocks: int,
    warps: int,
    *,
    tile: int = 16,
    unit: int = 32,
    split: bool = False,
) -> Sharing:
    """The cheapest way to share a product among `blocks` blocks of `warps` warps. `unit`: columns that stay together.

    A round of all blocks costs the columns that a warp reads, and some that stand for what each round costs anyway.
    """
    best: tuple[float, Sharing] | None = None
    for splits in (1, 2, 4, 8) if split else (1,):
        if columns % (splits * math.lcm(unit, 32 * layout.steps)):
            continue
        for shares in (1, 2, 4, 8, 16):
            if shares > warps or columns // splits < 32 * layout.steps * shares:
                continue
            batches = _whole(_whole(rows, tile), warps // shares)
            units = batches * splits
            cost = _whole(units, blocks) * (columns / splits / shares + 48) + 24 * (splits - 1)
            if best is None or cost < best[0]:
                best = (cost, Sharing(shares, splits))
    if best is None:
        raise UnknownLayers(f"a matrix with {columns} columns")
    return best[1]


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
    def chunk(self) -> int:
        """Columns of activations that are in shared memory at once."""
        return self._memory()[0]

    @property
    def depth(self) -> int:
        """Steps of 32 columns that a warp's weights are ahead."""
        return self._memory()[1]

    @property
    def bytes(self) -> int:
        return self._bytes(*self._memory())

    def _memory(self) -> tuple[int, int]:
        """Chunk and depth: as deep as lets the widest activations of a block be there at once, or at least half."""
        sizes, sharing = self.sizes, self.sharing()
        unit = math.lcm(128, sizes.value_dim if any(sizes.pattern) else 1)
        widths = (sizes.hidden, sizes.intermediate // sharing["DOWN"].splits, sizes.mixed // sharing["OUT"].splits)
        widest = -(-max(widths) // unit) * unit
        for least in (widest, -(-widest // 2 // unit) * unit, unit):
            for depth in (128 // self.warps, 64 // self.warps, 4, 2):
                if self._bytes(least, depth) <= self.shared_bytes:
                    chunk = least
                    while chunk < widest and self._bytes(chunk + unit, depth) <= self.shared_bytes:
                        chunk += unit
                    return chunk, depth
        raise UnknownLayers(f"{self.shared_bytes} bytes of shared memory")

    def _bytes(self, chunk: int, depth: int) -> int:
        """`Shared::BYTES` of cuda/product.cuh, and room for attention."""
        sizes = self.sizes
        head = 4 * (self.warps * self.tiles * 4 * 32 + 1024 + self.rows * (chunk // 32)) + self.warps * depth * 1024
        merged = self.warps * sizes.together * (sizes.head_dim + 2) + (sizes.together + 1) * sizes.head_dim
        return head + max(2 * self.rows * (chunk + 32), 4 * merged)

    def sharing(self) -> dict[str, Sharing]:
        s, unit = self.sizes, self.sizes.value_dim if any(self.sizes.pattern) else 32
        blocks, warps = self.blocks, self.warps
        ins = [s.delta_rows] * any(s.pattern) + [s.attention_rows] * (not all(s.pattern))
        outs = [s.values] * any(s.pattern) + [s.heads * s.head_dim] * (not all(s.pattern))
        narrow = min(outs)
        if any(columns % narrow for columns in outs):
            narrow = math.gcd(*outs)
        return {
            "IN": share(min(ins), s.hidden, s.linear, blocks, warps),
            "OUT": share(s.hidden, narrow, s.linear, blocks, warps, unit=unit, split=True),
            "UP": share(s.intermediate, s.hidden, s.linear, blocks, warps, tile=8),
            "DOWN": share(s.hidden, s.intermediate, s.linear, blocks, warps, split=True),
            "HEAD": share(s.vocabulary, s.hidden, s.head, blocks, warps),
        }

    def work_numbers(self) -> int:
        """`Step::WORK` of cuda/step.cuh: 4-byte numbers of workspace."""
        s, sharing = self.sizes, self.sharing()
        per_row = 2 * s.hidden + s.joined + (sharing["OUT"].splits + sharing["DOWN"].splits) * s.hidden + s.mixed
        per_row += s.heads * MOST_PARTS * (s.head_dim + 2) + (s.intermediate + s.mixed + s.hidden) // 2
        return self.rows * per_row

    def source(self) -> str:
        """`struct C` for cuda/step.cuh."""
        s = self.sizes
        numbers: dict[str, int] = {
            "NT": self.tiles, "WARPS": self.warps, "CHUNK": self.chunk, "DEPTH": self.depth, "BITS": s.linear.bits,
            "GROUP": s.linear.group, "EMBEDDING_BITS": s.embedding.bits, "EMBEDDING_GROUP": s.embedding.group,
            "HEAD_BITS": s.head.bits, "HEAD_GROUP": s.head.group, "HIDDEN": s.hidden,
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
        for name, yes in {"HALF": s.half, "GATED": s.gated, "HEAD_NORM": s.head_norm}.items():
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


def tail_bytes(layers: int) -> int:
    """`Step::TAIL` of cuda/step.cuh at most: arguments and the layers' addresses."""
    return aligned(160 + 8 * layers)
