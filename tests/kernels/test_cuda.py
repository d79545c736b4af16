"""The fused steps for NVIDIA GPUs: on the GPU where mlx computes on one, else on an emulator (tests/kernels/cuda).

What is checked is their arithmetic: products in every layout, the delta rule, attention over pages, ragged rows,
branches.
That memory is not raced for is checked on a GPU (docs/benchmarks/nvidia.sh).

Thread: any
"""

from __future__ import annotations

import copy
import json
import math
import shutil
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_map

from lattice_cli.kernels import cuda_decoder, cuda_gpu, cuda_layout, cuda_plan, cuda_source, cuda_state, platform
from lattice_cli.kernels.cuda_compiler import Compiler
from lattice_cli.kernels.cuda_plan import Plan
from lattice_cli.kernels.cuda_sharing import Sharing, share
from lattice_cli.kernels.cuda_sizes import Layout, Sizes, UnknownLayers
from lattice_cli.kernels.cuda_state import Pools
from lattice_cli.kernels.state import DecoderState
from lattice_cli.model.network import make_caches
from tests.kernels.cuda.emulated import Guarded, emulated

GPU = cuda_gpu.read_gpu() if platform.backend_name() == "cuda" else None
pytestmark = [
    pytest.mark.tiny,
    pytest.mark.skipif(not GPU and shutil.which("g++") is None, reason="the emulator is compiled"),
    pytest.mark.skipif(sys.platform != "linux", reason="the emulator is for Linux"),
]

VOCABULARY = 200
CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"
BLOCKS, SHARED_BYTES = (GPU.multiprocessors, GPU.shared_bytes - 2048) if GPU else (3, 60_000)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """mlx's CUDA kernels on the emulator, four warps a block; on a GPU nothing is put in their place."""
    if GPU:
        cuda_source.use(Compiler(GPU.capability, tmp_path_factory.mktemp("compiled")))
        yield
        cuda_source.use(None)
        return
    patch = pytest.MonkeyPatch()
    patch.setattr(mx.fast, "cuda_kernel", emulated(tmp_path_factory.mktemp("kernels")))
    patch.setattr(cuda_decoder, "WARPS", 4)
    yield
    patch.undo()


def qwen35(*, key_heads: int = 2, value_heads: int = 4, heads: int = 4, tied: bool = True) -> Any:
    from mlx_lm.models import qwen3_5

    config = {
        "model_type": "qwen3_5_text", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
        "num_attention_heads": heads, "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-6,
        "vocab_size": VOCABULARY, "max_position_embeddings": 1000, "tie_word_embeddings": tied,
        "full_attention_interval": 4, "linear_num_key_heads": key_heads, "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
        "rope_parameters": {"type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    }  # fmt: skip
    return qwen3_5.Model(qwen3_5.ModelArgs(model_type="qwen3_5", text_config=config))


def llama() -> Any:
    from mlx_lm.models import llama

    return llama.Model(
        llama.ModelArgs(
            model_type="llama", hidden_size=192, num_hidden_layers=2, intermediate_size=320, num_attention_heads=6,
            num_key_value_heads=2, rms_norm_eps=1e-5, vocab_size=VOCABULARY, tie_word_embeddings=False,
        )
    )  # fmt: skip


def qwen3() -> Any:
    from mlx_lm.models import qwen3

    return qwen3.Model(
        qwen3.ModelArgs(
            model_type="qwen3", hidden_size=128, num_hidden_layers=2, intermediate_size=256, num_attention_heads=6,
            num_key_value_heads=1, head_dim=64, rms_norm_eps=1e-6, vocab_size=VOCABULARY, tie_word_embeddings=True,
            max_position_embeddings=1000, rope_theta=10000.0,
        )
    )  # fmt: skip


class Pair:
    """A network with random weights, fused, and what mlx-lm says in float32 and in 16 bits."""

    def __init__(
        self,
        network: Any,
        *,
        bits: int = 16,
        group: int = 64,
        dtype: Any = mx.bfloat16,
        shared_bytes: int = SHARED_BYTES,
    ) -> None:
        mx.random.seed(4)
        network.update(tree_map(self._random, network.parameters()))
        for layer in network.layers:
            if hasattr(layer, "linear_attn"):
                net = layer.linear_attn
                net.A_log = mx.log(mx.random.uniform(0.1, 4, net.A_log.shape))
                net.conv1d.weight = mx.random.normal(net.conv1d.weight.shape) * 0.4
        if bits < 16:
            nn.quantize(network, group_size=group, bits=bits)
        network.set_dtype(dtype)
        mx.eval(network.parameters())
        self.ids = np.random.default_rng(5).integers(0, VOCABULARY, (9, 146)).astype(np.uint32)
        self.rough = self._all(network)
        weights = network.parameters()
        network.update(tree_map(self._wide, weights))
        self.right = self._all(network)
        network.update(weights)
        assert cuda_decoder.fuse(network, BLOCKS, shared_bytes) is None
        self.network = network

    def _all(self, network: Any) -> Any:
        """Logits (row, token, vocabulary): of the first row whole, of the others their beginning."""
        found = np.zeros((*self.ids.shape, VOCABULARY), np.float32)
        found[0] = np.array(network(mx.array(self.ids[:1])).astype(mx.float32))[0]
        found[:, :26] = np.array(network(mx.array(self.ids[:, :26])).astype(mx.float32))
        return found

    @staticmethod
    def _random(array: mx.array) -> mx.array:
        return mx.random.normal(array.shape) * 0.08 if array.ndim > 1 else 1 + 0.2 * mx.random.normal(array.shape)

    @staticmethod
    def _wide(array: mx.array) -> mx.array:
        return array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array

    def run(self, state: DecoderState, ids: Any) -> Any:
        logits = self.network(mx.array(ids), cache=[state])
        mx.eval(logits, state.state)
        return np.array(logits.astype(mx.float32))

    def close(self, row: int, begin: int, logits: Any) -> None:
        """Not further from float32 than mlx-lm in 16 bits is at its worst, some more allowed for other rounding."""
        here = slice(begin, begin + len(logits))
        allowed = 1.5 * np.abs(self.rough[row] - self.right[row]).max()
        assert np.abs(logits - self.right[row, here]).max() < allowed


NETWORKS = {
    "qwen3.5, dense": lambda: Pair(qwen35()),
    "qwen3.5, three value heads a key head, not tied": lambda: Pair(qwen35(value_heads=6, heads=6, tied=False)),
    "qwen3.5, 4 bits": lambda: Pair(qwen35(key_heads=4), bits=4),
    "llama, 8 bits in groups of 32": lambda: Pair(llama(), bits=8, group=32),
    "llama, float16": lambda: Pair(llama(), dtype=mx.float16),
    "qwen3, 4 bits in groups of 32, float16": lambda: Pair(qwen3(), bits=4, group=32, dtype=mx.float16),
}


LONG = ("qwen3.5, 4 bits", "llama, float16")  # what they have is in the others, too, in other company


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in NETWORKS],
)
def pair(emulator: None, request: pytest.FixtureRequest) -> Pair:
    return NETWORKS[request.param]()


def test_a_row_is_read_and_decoded_as_in_float32(pair: Pair) -> None:
    """Chunks that end inside a page and beyond it, then steps, across the end of a page, too."""
    (state,) = pair.network.make_cache()
    pair.close(0, 0, pair.run(state, pair.ids[:1, :70])[0])
    pair.close(0, 70, pair.run(state, pair.ids[:1, 70:125])[0])
    for at in range(125, 132):
        pair.close(0, at, pair.run(state, pair.ids[:1, at : at + 1])[0])


def test_ragged_rows_join_and_leave(pair: Pair) -> None:
    """Prompts of different lengths in one chunk, at different places; rows that come and go between steps."""
    states = [pair.network.make_cache()[0] for _ in range(3)]
    both = DecoderState.merge(states[:2])
    both.prepare(lengths=[3, 20])
    ids = np.zeros((2, 20), np.uint32)
    ids[0, :3], ids[1] = pair.ids[0, :3], pair.ids[1, :20]
    logits = pair.run(both, ids)
    pair.close(0, 0, logits[0, :3])
    pair.close(1, 0, logits[1])
    both.prepare(lengths=[9, 2])
    ids = np.zeros((2, 9), np.uint32)
    ids[0], ids[1, :2] = pair.ids[0, 3:12], pair.ids[1, 20:22]
    logits = pair.run(both, ids)
    both.finalize()
    pair.close(0, 3, logits[0])
    pair.close(1, 20, logits[1, :2])
    pair.run(states[2], pair.ids[2:3, :1])
    both.extend(states[2])
    places = [12, 22, 1]
    for _ in range(2):
        logits = pair.run(both, np.stack([pair.ids[row, at] for row, at in enumerate(places)])[:, None])
        for row, at in enumerate(places):
            pair.close(row, at, logits[row])
        places = [at + 1 for at in places]
    both.filter([0, 2])
    logits = pair.run(both, np.stack([pair.ids[row, places[row]] for row in (0, 2)])[:, None])
    pair.close(0, places[0], logits[0])
    pair.close(2, places[2], logits[1])


def test_branches_do_not_see_each_other(pair: Pair) -> None:
    (state,) = pair.network.make_cache()
    pair.run(state, pair.ids[:1, :40])
    twin = copy.deepcopy(state)
    for at in range(40, 43):
        pair.close(0, at, pair.run(state, pair.ids[:1, at : at + 1])[0])
    again = [pair.run(twin, pair.ids[:1, at : at + 1])[0] for at in range(40, 43)]
    third = pair.run(copy.deepcopy(state), pair.ids[1:2, 5:6])
    pair.close(0, 40, np.concatenate(again))
    assert np.isfinite(third).all()


def test_the_same_in_any_company(pair: Pair) -> None:
    """Nine rows take another kernel than one; a row's logits are the same within the error."""
    alone = []
    states = []
    for row in range(9):
        (state,) = pair.network.make_cache()
        alone.append(pair.run(state, pair.ids[row : row + 1, :1])[0, 0])
        states.append(pair.network.make_cache()[0])
    together = pair.run(DecoderState.merge(states), pair.ids[:, :1])
    for row in range(9):
        pair.close(row, 0, together[row])
        assert np.abs(together[row, 0] - alone[row]).max() < 0.05 * np.abs(alone[row]).max()


def test_pages_and_states_come_back(emulator: None) -> None:
    """What nobody has any more is free; a pool that is full doubles and keeps what is in it."""
    pair = Pair(qwen35())
    (state,) = pair.network.make_cache()
    decoder: Any = state._native
    pools: Pools = decoder.pools
    assert pools.states is not None
    before = len(pools.pages.free), len(pools.states.free)
    pair.run(state, pair.ids[:1, :140])
    twins = [copy.deepcopy(state) for _ in range(20)]
    for twin in twins:
        pair.run(twin, pair.ids[:1, 140:141])  # a page and a state of its own: more than a new pool has
    assert pools.pages.array.shape[0] > 16 and pools.states.array.shape[0] > 16
    pair.close(0, 141, pair.run(twins[7], pair.ids[:1, 141:142])[0])
    del twins, twin
    assert state.nbytes == 2 * pools.pages.piece_bytes + pools.states.piece_bytes
    del state
    grown = pools.pages.array.shape[0] - 16, pools.states.array.shape[0] - 16
    assert (len(pools.pages.free) - grown[0], len(pools.states.free) - grown[1]) == before


@pytest.mark.parametrize("make", [qwen35, llama])
def test_a_row_in_a_file_goes_on_as_it_would_have(emulator: None, make: Any) -> None:
    """Also in another process' pools, where its pages and its state have other numbers."""
    first, second = Pair(make()), Pair(make())
    (state,) = first.network.make_cache()
    first.run(state, first.ids[:1, :133])
    dump = state.rows[0].dump()
    fresh = second.network.make_cache()[0]
    others = [second.network.make_cache()[0] for _ in range(3)]
    for other in others:
        second.run(other, second.ids[1:2, :3])
    again = fresh.restored(133, dump)
    assert again is not None and again.offset == 133
    wanted = first.run(state, first.ids[:1, 133:134])
    assert np.array_equal(second.run(again, second.ids[:1, 133:134]), wanted)
    assert np.isfinite(second.run(others[0], second.ids[1:2, 3:4])).all()
    for tokens in (0, 120, 300):
        assert fresh.restored(tokens, dump) is None
    assert fresh.restored(133, [*dump[:-1], dump[-1][:-4]]) is None


def test_pools_grow_where_old_and_new_do_not_fit_together(emulator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_state, "has_room", lambda _nbytes: False)
    pair = Pair(qwen35())
    (state,) = pair.network.make_cache()
    pair.run(state, pair.ids[:1, :140])
    twins = [copy.deepcopy(state) for _ in range(20)]
    for twin in twins:
        pair.run(twin, pair.ids[:1, 140:141])
    pair.close(0, 141, pair.run(twins[3], pair.ids[:1, 141:142])[0])
    pair.close(0, 140, pair.run(state, pair.ids[:1, 140:141])[0])


def test_a_large_piece_is_not_made_sixteen_times_before_it_is_needed() -> None:
    pool = cuda_state.Pool((64 << 20) // 4, mx.float32)
    sizes = [pool.array.shape[0]]
    pieces = []
    for _ in range(6):
        pieces.append(pool.get(mx.zeros((64,))))
        sizes.append(pool.array.shape[0])
    assert sizes == [4, 4, 4, 4, 4, 8, 8] and len({piece.number for piece in pieces}) == 6


@pytest.mark.skipif(bool(GPU), reason="looks at how the kernels are called")
def test_whatever_touches_the_pools_is_a_link_of_their_chain(emulator: None) -> None:
    """Kernels write into them while mlx knows nothing of it: what takes no mark could run before what it reads."""
    pair = Pair(qwen35())
    (state,) = pair.network.make_cache()
    decoder: Any = state._native
    pools: Pools = decoder.pools
    assert pools.states is not None
    for pool in (pools.pages, pools.states):
        pool.array = Guarded(pool.array)  # type: ignore[assignment]
    both = DecoderState.merge([state, pair.network.make_cache()[0]])
    for lengths in ([4, 9], [5, 2], [1, 1]):  # at the beginning, at places that differ, a step
        both.prepare(lengths=lengths)
        pair.run(both, pair.ids[:2, : max(lengths)])
    both.finalize()
    twin = copy.deepcopy(both)
    pair.run(twin, pair.ids[:2, :3])
    pair.run(twin, pair.ids[:2, :1])
    with pytest.raises(RuntimeError):
        mx.depends([pools.pages.array], [pools.mark])


def test_a_trimmed_row_goes_on(emulator: None) -> None:
    pair = Pair(llama())
    (state,) = pair.network.make_cache()
    pair.run(state, pair.ids[:1, :140])
    assert state.is_trimmable() and state.trim(20) == 20
    pair.close(0, 120, pair.run(state, pair.ids[:1, 120:121])[0])
    assert not Pair(qwen35()).network.make_cache()[0].is_trimmable()


def test_a_step_that_is_wrong_is_not_used(emulator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check at loading compares with mlx-lm's own step, and leaves the network as it was where they differ."""
    gpu = cuda_gpu.Gpu(BLOCKS, SHARED_BYTES + 2048, (9, 0))
    network = llama()
    network.set_dtype(mx.bfloat16)
    kind = type(network)
    assert (
        cuda_gpu.fuse_checked(network, gpu, [make_caches(network) for _ in range(2)]) is None
        and type(network) is not kind
    )

    network = llama()
    network.set_dtype(mx.bfloat16)
    right = cuda_layout.turns_of
    monkeypatch.setattr(cuda_layout, "turns_of", lambda *given: right(*given) + 1)
    reason = cuda_gpu.fuse_checked(network, gpu, [make_caches(network) for _ in range(2)])
    assert reason is not None and "differ from mlx-lm's" in reason and type(network) is kind


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda net: net.set_dtype(mx.float32), "float32"),
        (lambda net: nn.quantize(net, bits=3, group_size=64), "3 bits"),
        (lambda net: setattr(net.layers[0].self_attn.rope, "traditional", True), "neighbouring"),
        (lambda net: setattr(net.layers[1].mlp, "up_proj", nn.Linear(192, 320, bias=True)), "bias"),
    ],
)
def test_what_is_not_known_stays_as_it_is(change: Any, reason: str) -> None:
    network = llama()
    network.set_dtype(mx.bfloat16)
    kind = type(network)
    change(network)
    told = cuda_decoder.fuse(network, 132, 220_000)
    assert told is not None and reason in told and type(network) is kind


def test_a_gpu_with_little_shared_memory_keeps_mlx_lms_steps() -> None:
    """Asked for every number of rows before anything is changed: a kernel for 32 needs more than one for 8."""
    network = llama()
    network.set_dtype(mx.bfloat16)
    for shared_bytes in (20_000, 30_000):
        told = cuda_decoder.fuse(network, 40, shared_bytes)
        assert told is not None and f"{shared_bytes} bytes of shared memory" in told


def test_an_old_gpu_and_none_are_told() -> None:
    assert "compute capability 8.0" in str(cuda_gpu.fuse_checked(llama(), cuda_gpu.Gpu(40, 65536, (7, 5)), []))
    assert "driver" in str(cuda_gpu.fuse_checked(llama(), None, []))


DTYPES, HEADS = (mx.float32, mx.bfloat16, mx.float16), ((2, 2), (1, 3), (2, 4))
# Each is a kernel to compile: each kind and each number of heads is in every run, all pairs in the slow one.
SCANS = [
    pytest.param(dtype, *heads, marks=() if one == other else pytest.mark.slow)
    for one, dtype in enumerate(DTYPES)
    for other, heads in enumerate(HEADS)
]


@pytest.mark.parametrize(("dtype", "key_heads", "value_heads"), SCANS)
@pytest.mark.parametrize("tokens", [1, 16, 17, 70])
def test_the_scan_is_mlx_lms(emulator: None, dtype: Any, key_heads: int, value_heads: int, tokens: int) -> None:
    """Over random inputs, with and without a mask and a state to begin with, ragged rows among them."""
    from mlx_lm.models.gated_delta import gated_delta_update as theirs
    from mlx_lm.models.gated_delta import normalize_qk

    from lattice_cli.kernels.gated_delta import gated_delta_update as ours

    mx.random.seed(tokens)
    rows, key_dim, value_dim = 2, 32, 16
    q, k = (mx.random.normal((rows, tokens, key_heads, key_dim)).astype(dtype) for _ in range(2))
    q, k = normalize_qk(q, k, inv_scale=key_dim**-0.5, eps=1e-6)
    v = mx.random.normal((rows, tokens, value_heads, value_dim)).astype(dtype)
    a, b = (mx.random.normal((rows, tokens, value_heads)).astype(dtype) for _ in range(2))
    rates = mx.log(mx.random.uniform(0.1, 4, (value_heads,))), mx.random.normal((value_heads,))
    state = mx.random.normal((rows, value_heads, value_dim, key_dim))
    mask = mx.arange(tokens)[None] < mx.array([[tokens], [max(1, tokens // 2)]])
    wide = [one.astype(mx.float32) for one in (q, k, v, a, b)]
    for given, hidden in ((None, None), (state, None), (state, mask)):
        want, after = theirs(*wide, *rates, given, hidden)
        got, end = ours(lambda *_: pytest.fail("the original was called"), q, k, v, a, b, *rates, given, hidden)
        shown = mx.ones((rows, tokens), dtype=mx.bool_) if hidden is None else hidden
        limit = 1e-4 if dtype == mx.float32 else 1e-2
        assert got.dtype == dtype and float(mx.abs(end - after).max()) < limit * float(mx.abs(after).max())
        off = mx.abs(got.astype(mx.float32) - want) * shown[..., None, None]
        assert float(off.max()) < limit * float(mx.abs(want).max())


def test_a_scan_of_another_kind_is_left_to_mlx_lm() -> None:
    from lattice_cli.kernels.gated_delta import gated_delta_update

    q, v, a = mx.zeros((1, 2, 1, 48)), mx.zeros((1, 2, 1, 16)), mx.zeros((1, 2, 1))
    for others in ({"q": q}, {"lower_bound": -5.0}, {"v": mx.zeros((1, 2, 1, 8))}, {"use_kernel": False}):
        given = {"q": mx.zeros((1, 2, 1, 32)), "v": v} | {
            name: others.pop(name) for name in ("q", "v") if name in others
        }
        seen = gated_delta_update(lambda *_, **__: "theirs", given["q"], given["q"], given["v"], a, a, a, a, **others)
        assert seen == "theirs"


@pytest.mark.parametrize(
    ("make", "bits", "group", "shares", "shared_bytes"),
    [
        pytest.param(llama, 4, 64, 2, 30_000, id="narrow steps of 4 bits"),
        pytest.param(llama, 8, 64, 4, 33_000, id="8 bits, a scale a step", marks=pytest.mark.slow),
        pytest.param(qwen35, 8, 32, 2, 40_000, id="8 bits, two scales a step"),
        pytest.param(qwen3, 4, 32, 4, 36_000, id="4 bits, four scales a step", marks=pytest.mark.slow),
        pytest.param(qwen3, 16, 64, 4, 30_000, id="dense"),
    ],
)
def test_however_products_are_shared(
    emulator: None, monkeypatch: pytest.MonkeyPatch, make: Any, bits: int, group: int, shares: int, shared_bytes: int
) -> None:
    """Warps that share columns, blocks that do, columns in pieces: what only larger networks have otherwise; 1, 9 and
    17 rows at once, which are three kernels.
    """

    def finely(_rows: int, columns: int, step: int, *_others: int, unit: int = 32, most: int = 0, **_: Any) -> Sharing:
        return Sharing(shares, 2 if most and columns % (2 * math.lcm(unit, step)) == 0 else 1)

    monkeypatch.setattr(cuda_plan, "share", finely)
    pair = Pair(make(), bits=bits, group=group, shared_bytes=65_000)
    decoder: Any = pair.network.make_cache()[0]._native
    seen: set[tuple[bool, bool]] = set()
    for count, room in ((1, shared_bytes), (9, shared_bytes), (17, 60_000 if bits == 4 else 65_000)):
        decoder._shared_bytes = room
        states = [pair.network.make_cache()[0] for _ in range(count)]
        both = DecoderState.merge(states)
        for at in range(2):
            logits = pair.run(both, pair.ids[np.arange(count) % 9, at : at + 1])
            for row in range(count):
                pair.close(row % 9, at, logits[row])
        memory = decoder._kernel(count)[0].memory
        seen.add((memory.chunk < max(decoder.sizes.hidden, decoder.sizes.intermediate), memory.results > 0))
    if make is llama and bits == 4:  # one piece at a time of one unit, and of several whose sums are kept
        assert seen >= {(True, False), (True, True)}


@pytest.mark.parametrize("config", ["0.8b", "2b", "4b", "9b", "27b"])
@pytest.mark.parametrize("bits", [16, 8, 4])
def test_products_are_shared_so_that_all_columns_are_read(config: str, bits: int) -> None:
    sizes = sizes_of(config, Layout(bits, 64))
    # An H200, an A100, and GPUs for desks.
    for (blocks, room), tiles in product(((132, 230_000), (108, 164_864), (82, 99_328)), (1, 2, 4)):
        plan = Plan(sizes, {}, tiles, 8, blocks, room)
        assert plan.memory.nbytes <= room and plan.memory.chunk % 128 == 0 and plan.memory.depth >= 2
        step = 32 * sizes.linear.subs([sizes.hidden, sizes.intermediate])
        for name, columns in (("OUT", sizes.values), ("DOWN", sizes.intermediate), ("IN", sizes.hidden)):
            shared = plan.sharing()[name]
            assert columns % (shared.splits * step) == 0 and 8 % shared.shares == 0
        plan.source()
    with pytest.raises(UnknownLayers):
        share(64, 48, 64, 132, 16)


def sizes_of(config: str, layout: Layout) -> Sizes:
    """Of Qwen3.5 in one of its sizes."""
    (given,) = [json.loads(path.read_text())["text_config"] for path in CONFIGS.glob(f"qwen3.5-{config}.json")]
    head_dim, every = given["head_dim"], given["full_attention_interval"]
    return Sizes(
        half=False, linear=layout, embedding=layout, head=layout, hidden=given["hidden_size"],
        intermediate=given["intermediate_size"], vocabulary=given["vocab_size"], eps=1e-6,
        pattern=tuple((at + 1) % every != 0 for at in range(given["num_hidden_layers"])),
        heads=given["num_attention_heads"], kv_heads=given["num_key_value_heads"], head_dim=head_dim,
        turned=head_dim // 8, scale=head_dim**-0.5, gated=True, head_norm=True,
        key_heads=given["linear_num_key_heads"], value_heads=given["linear_num_value_heads"],
        key_dim=given["linear_key_head_dim"], value_dim=given["linear_value_head_dim"],
    )  # fmt: skip
