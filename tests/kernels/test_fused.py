"""Decoders as one primitive: against mlx-lm's own layers, in chunks, batches and branches.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lattice_cli.kernels import fused, install, native_choice
from lattice_cli.kernels.state import DecoderState
from lattice_cli.model.upstream import file_limit_kept
from lattice_cli.settings import Home

pytestmark = [pytest.mark.tiny, pytest.mark.timeout(300)]

CACHE = Path("~/.cache/lattice-tests").expanduser()  # where compiled kernels stay between runs
IDS = [(7 * i) % 290 for i in range(300)]
BASE = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 160,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 300,
    "tie_word_embeddings": True,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
HYBRID = {
    "num_hidden_layers": 4,
    "full_attention_interval": 2,
    "head_dim": 32,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "rope_parameters": {"type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"head_dim": 16}),
    "untied": ("llama", {"head_dim": 16, "tie_word_embeddings": False}),
    "traditional": ("llama", {"head_dim": 16, "rope_traditional": True}),
    "biases": ("llama", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "llama3": ("llama", {"head_dim": 16, "rope_scaling": LLAMA3}),
    "linear": ("llama", {"head_dim": 16, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    "windows": (
        "llama",
        {
            "head_dim": 16,
            "sliding_window": 50,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen2": ("qwen2", {"hidden_size": 96}),
    "hybrid": ("qwen3_5", HYBRID),
    "hybrid-untied": (
        "qwen3_5",
        HYBRID | {"linear_num_value_heads": 2, "linear_value_head_dim": 32, "tie_word_embeddings": False},
    ),
    "qwen3": ("qwen3", {"head_dim": 32, "max_position_embeddings": 512, "rope_theta": 10000.0}),
}


@pytest.fixture(scope="module")
def native() -> Any:
    found = native_choice.choose(Home(CACHE, CACHE / "models", kernels="exact"))
    if found.module is None:
        pytest.skip(found.reason)
    return found.module


def network(case: str, kind: str = "quantized") -> Any:
    """A random network of mlx-lm, always the same one for a case."""
    family, given = CASES[case]
    with file_limit_kept():
        from importlib import import_module

        module = import_module(f"mlx_lm.models.{family}")
    from mlx.nn import quantize
    from mlx.utils import tree_flatten

    mx.random.seed(5)
    model = module.Model(module.ModelArgs.from_dict({"model_type": family, **BASE, **given}))
    model.load_weights(
        [(name, -abs(a)) for name, a in tree_flatten(model.parameters()) if "A_log" in name], strict=False
    )
    for name, array in model.named_modules():
        if name.endswith("norm"):
            array.weight = mx.random.uniform(0.5, 1.5, array.weight.shape)
        if "bias" in array:
            array.bias = mx.random.normal(array.bias.shape) * 0.1
    if kind == "quantized":
        quantize(model, 32, 4)
    if kind == "bfloat16":
        model.set_dtype(mx.bfloat16)
    model.eval()
    mx.eval(model.parameters())
    return model


def fuse(model: Any, native: Any, *, half: bool = False) -> Any:
    install.pack_modules(model, native, exact=True)
    assert fused.fuse(model, native, half=half) is None
    return model


def state(model: Any) -> DecoderState:
    (only,) = model.make_cache()
    assert isinstance(only, DecoderState)
    return only


def read(model: Any, cache: DecoderState, ids: list[int]) -> mx.array:
    """Logits of one more piece of a single row."""
    return model(mx.array([ids]), cache=[cache])[0]


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_mlx_lm(native: Any, case: str) -> None:
    want = network(case)(mx.array([IDS]))[0]
    model = fuse(network(case), native)
    got = model(mx.array([IDS]))[0]
    assert float(mx.abs(got - want).max()) < 1e-4 * float(mx.abs(want).max())
    cache = state(model)
    pieces = [read(model, cache, IDS[a:b]) for a, b in [(0, 1), (1, 70), (70, 71), (71, 199), (199, 300)]]
    assert mx.array_equal(mx.concatenate(pieces), got), "a chunk changes bits"
    assert cache.size() == len(IDS) and not cache.empty()


def test_dense_weights_and_their_formats(native: Any) -> None:
    for kind in ("float32", "bfloat16"):
        reference = network("llama", kind)
        reference.set_dtype(mx.float32)
        want = reference(mx.array([IDS]))[0]
        got = fuse(network("llama", kind), native)(mx.array([IDS]))[0]
        assert got.dtype == mx.float32
        assert float(mx.abs(got - want).max()) < 1e-4 * float(mx.abs(want).max())


def test_half_precision_keys_and_values(native: Any) -> None:
    want = network("llama")(mx.array([IDS]))[0]
    model = fuse(network("llama"), native, half=True)
    cache = state(model)
    got = mx.concatenate([read(model, cache, IDS[:200]), read(model, cache, IDS[200:])])
    assert 1e-6 < float(mx.abs(got - want).max() / mx.abs(want).max()) < 5e-3
    full = state(fuse(network("llama"), native))
    full.run(mx.zeros((1, 5, 64)), model.model._decoder.network)
    assert cache.nbytes * 2 == 3 * full.nbytes  # three pages in float16 against one in float32


@pytest.mark.parametrize("kind", ["llama", "hybrid"])
def test_rows_of_any_lengths_in_one_call_are_as_if_alone(native: Any, kind: str) -> None:
    """One that decodes, one whose prompt ends, one in the middle of its prompt: only the first two are heard."""
    model = fuse(network(kind), native)
    rows = [IDS[:5], IDS[40:130], IDS[9:100]]
    read_before = [4, 30, 0]
    alone = [read(model, state(model), ids)[-1] for ids in rows]
    states = [state(model) for _ in rows]
    for one, ids, done in zip(states, rows, read_before, strict=True):
        if done:
            model(mx.array([ids[:done]]), cache=[one])
    parts = [ids[done:] for ids, done in zip(rows, read_before, strict=True)]
    joined = DecoderState.merge(states)
    joined.join([len(part) for part in parts], 2)
    found = model(mx.array([[token for part in parts for token in part]]), cache=[joined])
    assert found.shape[:2] == (2, 1)
    assert mx.array_equal(found[:, 0], mx.stack(alone[:2]))
    for one in states:
        one.follow(joined)
    after = [read(model, state(model), [*ids, 3])[-1] for ids in rows]
    for one, want in zip(states, after, strict=True):
        assert mx.array_equal(model(mx.array([[3]]), cache=[one])[0, 0], want)


def test_counts_that_do_not_add_up_are_refused(native: Any) -> None:
    model = fuse(network("llama"), native)
    joined = DecoderState.merge([state(model), state(model)])
    joined.join([2, 2], 0)
    with pytest.raises(ValueError, match="do not add up"):
        model(mx.array([IDS[:5]]), cache=[joined])


def test_padded_rows_of_a_batch_are_as_if_alone(native: Any) -> None:
    model = fuse(network("qwen3"), native)
    rows = [IDS[:5], IDS[40:130], IDS[9:10]]
    alone = [read(model, state(model), [*ids, 3]) for ids in rows]
    merged = DecoderState.merge([state(model) for _ in rows])
    lengths = [len(ids) for ids in rows]
    padded = mx.array([ids + [0] * (max(lengths) - len(ids)) for ids in rows])
    merged.prepare(lengths=lengths, right_padding=[max(lengths) - length for length in lengths])
    first = model(padded[:, :60], cache=[merged])
    second = model(padded[:, 60:], cache=[merged])
    merged.finalize()
    found = mx.concatenate([first, second], axis=1)
    last = model(mx.array([[3]] * 3), cache=[merged])
    for row, (ids, want) in enumerate(zip(rows, alone, strict=True)):
        assert mx.array_equal(mx.concatenate([found[row, : len(ids)], last[row]]), want)
    assert [row.tokens for row in merged.rows] == [length + 1 for length in lengths]


def test_branches_go_their_own_way(native: Any) -> None:
    """Copies share pages until one of them writes, whoever it is and however late what was queued runs."""
    model = fuse(network("llama"), native)
    trunk = state(model)
    read(model, trunk, IDS[:150])
    branches: list[tuple[list[int], DecoderState]] = [(IDS[:150], trunk)]
    ways: list[Callable[[DecoderState], DecoderState]] = [copy.deepcopy, lambda it: it.extract(0)]
    outcomes = []
    for index in range(6):
        ids, cache = branches[index // 2]
        own = ways[index % 2](cache)
        more = IDS[20 * index : 20 * index + 7]
        outcomes.append((ids + more, read(model, own, more)))  # not evaluated yet
        branches.append((ids + more, own))
    outcomes.append(([*IDS[:150], 9, 9], read(model, trunk, [9, 9])))
    for ids, logits in outcomes:
        want = read(model, state(model), ids)
        assert mx.array_equal(logits, want[-logits.shape[0] :])


def test_rows_come_and_go(native: Any) -> None:
    model = fuse(network("llama"), native)
    caches = []
    for start in (0, 10, 20):
        caches.append(state(model))
        read(model, caches[-1], IDS[start : start + 40])
    batch = DecoderState.merge(caches[:2])
    batch.extend(caches[2])
    batch.filter([2, 0])
    logits = model(mx.array([[1], [2]]), cache=[batch])
    for row, (start, token) in enumerate(((20, 1), (0, 2))):
        want = read(model, state(model), [*IDS[start : start + 40], token])[-1]
        assert mx.array_equal(logits[row, 0], want)
    assert batch.is_trimmable() and batch.trim(30) == 30
    assert [row.tokens for row in batch.rows] == [11, 11]
    again = model(mx.array([[5], [6]]), cache=[batch])
    assert mx.array_equal(again[1, 0], read(model, state(model), [*IDS[:11], 6])[-1])


def test_memory_comes_back(native: Any) -> None:
    model = fuse(network("llama"), native)
    before = native.state_bytes()
    cache = state(model)
    mx.eval(read(model, cache, IDS))
    assert native.state_bytes() - before == cache.nbytes > 0
    batch = cache.extract(0)
    assert native.state_bytes() - before == cache.nbytes, "a copy costs nothing until it is written"
    del cache, batch
    mx.synchronize()
    assert native.state_bytes() == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "positions by YarnRoPE"),
        ({"hidden_size": 48, "num_attention_heads": 6}, None),
    ],
)
def test_what_is_not_known_stays_mlx_lms(native: Any, change: dict[str, Any], reason: str | None) -> None:
    from mlx_lm.models import llama

    given = {"model_type": "llama", **BASE, "head_dim": 16, **change}
    model = llama.Model(llama.ModelArgs.from_dict(given))
    install.pack_modules(model, native, exact=True)
    found = fused.fuse(model, native, half=False)
    assert found == (None if reason is None else f"its layers are not fused: {reason}")
    assert model(mx.array([[1, 2, 3]])).shape == (1, 3, 300)


def test_a_kind_of_network_without_fused_layers(native: Any) -> None:
    class Other:
        model_type = "mamba"
        model = None

    assert fused.fuse(Other(), native, half=False) == "`mamba` has no fused layers"
