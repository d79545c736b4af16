"""The plan of the fused decoding step on an NVIDIA GPU: how each product of a network is shared among warps and blocks,
and what is where in memory. cuda/step.cuh is compiled for one plan.

Thread: worker
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lattice_cli.kernels.cuda_sharing import Sharing, share, whole
from lattice_cli.kernels.cuda_sizes import PAGE_TOKENS, Sizes, UnknownLayers, aligned, matrix_places

MOST_ROWS = 32
MOST_PARTS = 64  # of one row's context, for attention
_PIPES = (128, 64, 32, 16)  # steps that the weights of a block's warps are ahead, all together; each two at least
_RESULTS = 4096  # 16 kB
_STAGING = 180  # what putting a piece of the activations into shared memory costs, in columns of a warp
_MATRICES = ("IN", "OUT", "GATE", "UP", "DOWN")
_NAMES = (*_MATRICES, "IN_NORM", "POST_NORM", "Q_NORM", "K_NORM", "CONV", "A_LOG", "DT_BIAS", "OUT_NORM")


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
        widest = whole(max(widths), unit) * unit
        if widest <= self._most(_PIPES[0], 0, unit):
            return self._memory(widest, _PIPES[0], 0)
        for pipe in (pipe for pipe in _PIPES[1:] if pipe >= 2 * self.warps):
            if widest <= self._most(pipe, 0, unit):
                return self._memory(widest, pipe, 0)
            for results in (_RESULTS, 0):
                most = self._most(pipe, results, unit)
                if most >= unit:
                    pieces = whole(widest, most)
                    return self._memory(whole(whole(widest, pieces), unit) * unit, pipe, results)
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

        def shared(rows: int, step: int, tile: int = 16) -> Sharing:
            def stages(shares: int, units: int) -> float:
                """Pieces of the columns are put into shared memory once for as many units as there are results for."""
                pieces = whole(s.hidden, memory.chunk)
                results = self.warps // shares * self.tiles * 32 * 4
                return whole(units, max(1, memory.results // results)) * pieces * _STAGING if pieces > 1 else 0

            return share(rows, s.hidden, step, self.blocks, self.warps, tile=tile, stages=stages)

        return self._split() | {
            "IN": shared(min(ins), 32 * self._subs),
            "UP": shared(s.intermediate, 32 * self._subs, tile=8),
            "HEAD": shared(s.vocabulary, 32 * self._head_subs),
        }

    def work_numbers(self) -> int:
        """`Frame::WORK` of cuda/frame.cuh: 4-byte numbers of workspace."""
        s, sharing = self.sizes, self.sharing()
        per_row = 2 * s.hidden + s.joined + (sharing["OUT"].splits + sharing["DOWN"].splits) * s.hidden + s.mixed
        per_row += s.heads * MOST_PARTS * (s.head_dim + 2) + (s.intermediate + s.mixed + s.hidden) // 2
        return self.rows * per_row

    @property
    def tail_bytes(self) -> int:
        """`Frame::TAIL` of cuda/frame.cuh at most: arguments, the layers' addresses, two numbers of each row."""
        return aligned(160 + 8 * len(self.sizes.pattern) + 8 * self.rows)

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
        longs |= {"WORK_NUMBERS": self.work_numbers(), "SHARED_BYTES": memory.nbytes, "TAIL_BYTES": self.tail_bytes}
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


def _listed(places: dict[str, int]) -> str:
    """The fields of `Places`; 0 for what a layer of this kind has not."""
    found = []
    for name in _NAMES:
        three = [str(places.get(f"{name}{part}", 0)) for part in ("", "_SCALES", "_BIASES")]
        found.append(f"{{{', '.join(three)}}}" if name in _MATRICES else three[0])
    return ", ".join(found)
