"""The fused steps at the widths of Qwen3.5's real sizes, on an NVIDIA GPU: beside mlx-lm in float32 and in 16 bits.

Four layers of each (three recurrent ones and attention), with the whole vocabulary; quantized weights are compared
with the same weights spread out again, so that mlx's own kernels for them are not needed.

Thread: any
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_map, tree_map_with_path

from lattice_cli.kernels import cuda_gpu, cuda_source, platform
from lattice_cli.kernels.cuda_compiler import Compiler
from lattice_cli.kernels.state import DecoderState
from lattice_cli.model.network import make_caches

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.backend_name() != "cuda", reason="runs on an NVIDIA GPU"),
]

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"
PROMPT, STEPS = 100, 200
CASES = [
    *((size, 16, 64, mx.bfloat16) for size in ("0.8b", "2b", "4b", "9b", "27b")),
    ("0.8b", 16, 64, mx.float16), ("27b", 16, 64, mx.float16),
    ("0.8b", 4, 64, mx.bfloat16), ("4b", 4, 32, mx.float16), ("27b", 4, 64, mx.bfloat16),
    ("0.8b", 8, 32, mx.bfloat16), ("9b", 8, 64, mx.bfloat16), ("27b", 8, 32, mx.float16),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    gpu = cuda_gpu.read_gpu()
    assert gpu is not None
    cuda_source.use(Compiler(gpu.capability, tmp_path_factory.mktemp("compiled")))
    yield
    cuda_source.use(None)


def made(size: str, bits: int, group: int, dtype: Any) -> tuple[Any, Any]:
    """A network with random weights as it would be loaded, and a dense one with the same weights."""
    from mlx_lm.models import qwen3_5

    config = json.loads((CONFIGS / f"qwen3.5-{size}.json").read_text())
    config["text_config"]["num_hidden_layers"] = 4
    networks = [qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config)) for _ in range(2)]
    mx.random.seed(11)
    stored = networks[0]
    stored.update(tree_map(_random, stored.parameters()))
    for layer in stored.layers:
        if hasattr(layer, "linear_attn"):
            net = layer.linear_attn
            net.A_log = mx.log(mx.random.uniform(0.1, 8, net.A_log.shape))
            net.conv1d.weight = mx.random.normal(net.conv1d.weight.shape) * 0.4
    if bits < 16:
        nn.quantize(stored, group_size=group, bits=bits)
    stored.set_dtype(dtype)
    mx.eval(stored.parameters())
    dense = networks[1]
    modules = dict(stored.named_modules())

    def spread(path: str, _array: mx.array) -> mx.array:
        owner, _, name = path.rpartition(".")
        module = modules[owner]
        if name == "weight" and "scales" in module:
            return mx.dequantize(module.weight, module.scales, module.biases, group, bits)
        return module[name] if name in module else getattr(module, name)

    dense.update(tree_map_with_path(spread, dense.parameters()))
    mx.eval(dense.parameters())
    return stored, dense


def _random(array: mx.array) -> mx.array:
    if array.ndim == 1:
        return 1 + 0.2 * mx.random.normal(array.shape)
    return mx.random.normal(array.shape) / array.shape[-1] ** 0.5


def _wide(array: mx.array) -> mx.array:
    return array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array


def forced(network: Any, ids: mx.array) -> Any:
    """Logits (steps, vocabulary) float32 after each of the last ids, which come one by one."""
    caches = make_caches(network)
    for begin, end in ((0, 33), (33, PROMPT)):  # a chunk after another reads keys and values out of their pages
        mx.eval(network(ids[:, begin:end], cache=caches)[:, -1], [cache.state for cache in caches])
    found = []
    for at in range(PROMPT, PROMPT + STEPS):
        logits = network(ids[:, at : at + 1], cache=caches)[0, -1].astype(mx.float32)
        mx.eval(logits, [cache.state for cache in caches])
        found.append(np.array(logits))
    return np.stack(found)


@pytest.mark.parametrize(("size", "bits", "group", "dtype"), CASES, ids=str)
def test_200_steps_are_nearer_to_float32_than_mlx_lms_are(size: str, bits: int, group: int, dtype: Any) -> None:
    """And the likeliest token is float32's wherever the lead is larger than the error; the same in company."""
    stored, dense = made(size, bits, group, dtype)
    ids = mx.array(np.random.default_rng(3).integers(0, 200_000, (1, PROMPT + STEPS)).astype(np.uint32))
    rough = forced(dense, ids)
    narrow = dense.parameters()
    dense.update(tree_map(_wide, narrow))
    right = forced(dense, ids)
    del dense, narrow
    assert cuda_gpu.fuse_checked(stored, cuda_gpu.read_gpu(), [make_caches(stored) for _ in range(2)]) is None
    ours = forced(stored, ids)

    off, theirs = np.abs(ours - right).max(axis=1), np.abs(rough - right).max(axis=1)
    ranked = np.sort(right, axis=1)
    lead = ranked[:, -1] - ranked[:, -2]
    same, agree = ours.argmax(axis=1) == right.argmax(axis=1), rough.argmax(axis=1) == right.argmax(axis=1)
    print(
        f"one step {off[0]:.4f} (mlx-lm {theirs[0]:.4f}); {STEPS} steps: most {off.max():.4f} ({theirs.max():.4f}), "
        f"median {np.median(off):.4f} ({np.median(theirs):.4f}); likeliest as float32 {same.sum()} ({agree.sum()}); "
        f"logits up to {np.abs(right).max():.2f}"
    )
    assert off.max() <= theirs.max() and np.median(off) <= np.median(theirs)
    assert same[lead > 2 * theirs.max()].all()
    company(stored, ids, ours, theirs.max())


def company(network: Any, ids: mx.array, alone: Any, error: float) -> None:
    """The first row among 1, 5, 9 and 32 rows of other lengths: its logits are those it has alone, within the error."""
    (state,) = network.make_cache()
    mx.eval(network(ids[:, :PROMPT], cache=[state])[:, -1], state.state)
    for rows in (2, 6, 10, 32):
        others = []
        for row in range(1, rows):
            (other,) = network.make_cache()
            mx.eval(network(ids[:, row : 2 * row + 1], cache=[other])[:, -1], other.state)
            others.append(other)
        both = DecoderState.merge([copy.deepcopy(state), *others])
        for at in range(3):
            fed = mx.concatenate([ids[:, PROMPT + at], ids[0, : rows - 1]])[:, None]
            logits = network(fed, cache=[both])[0, -1].astype(mx.float32)
            assert np.abs(np.array(logits) - alone[at]).max() <= error, (rows, at)
