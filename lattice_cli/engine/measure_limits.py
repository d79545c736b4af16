"""How near the limit: what this machine can move and multiply at best, and what a step of a network must.

A decode step reads every weight it computes with once, and the keys and values of its context; a prompt token
multiplies every weight of the layers once, which is two operations. Knows mlx arrays; knows no text.

Thread: worker
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

BUFFER_BYTES = 1 << 28  # beyond any cache
REPEATS, QUEUED = 5, 8
GEMM_SIZE = {"cpu": 1536, "gpu": 8192}


@dataclass(frozen=True, slots=True)
class Weights:
    """What a step computes with. Bytes are as they lie in memory, packed; counts are weights. `layer_weights` are the
    matrices of the layers, `head_weights` the one that makes logits. Of experts only those chosen count. `token_bytes`
    are keys and values of a token of context, None where they cannot be told.
    """

    model_bytes: int
    step_bytes: int
    layer_weights: int
    head_weights: int
    token_bytes: float | None


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """The best of a few runs: bytes read and written by a copy, bytes read alone, float operations of a product."""

    copy_bytes_s: float
    read_bytes_s: float
    gemm_ops_s: float
    how: str


def measure_machine(threads: int) -> MachineLimits:
    """Copy and read bandwidth and the GEMM rate of what mlx computes on. Cost: a second or two, and 0.5 GB."""
    import mlx.core as mx

    if mx.default_device() == mx.Device(mx.cpu):
        copy_s, read_s = _host_seconds(threads)
        kind, form, how = "cpu", mx.float32, f"numpy on {threads} threads; float32 products of mlx"
    else:
        copy_s, read_s = _device_seconds()
        kind, form, how = "gpu", mx.float16, "mlx on its device; float16 products of mlx"
    size = GEMM_SIZE[kind]
    left, right = mx.random.normal((size, size)).astype(form), mx.random.normal((size, size)).astype(form)
    mx.eval(left, right)
    gemm_s = _best(lambda: mx.eval(left @ right))
    return MachineLimits(2 * BUFFER_BYTES / copy_s, BUFFER_BYTES / read_s, 2 * size**3 / gemm_s, how)


def _best(run: Callable[[], object]) -> float:
    run()
    found = []
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        run()
        found.append(time.perf_counter() - began_s)
    return min(found)


def _host_seconds(threads: int) -> tuple[float, float]:
    source = np.ones(BUFFER_BYTES // 8, dtype=np.int64)
    target = np.empty_like(source)
    pieces = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        copy_s = _best(lambda: list(pool.map(lambda piece: np.copyto(piece[1], piece[0]), pieces)))
        read_s = _best(lambda: list(pool.map(lambda piece: piece[0].max(), pieces)))
    return copy_s, read_s


def _device_seconds() -> tuple[float, float]:
    import mlx.core as mx

    source = mx.ones((BUFFER_BYTES // 4,), dtype=mx.float32)
    mx.eval(source)

    def copies() -> None:
        made = source
        for _ in range(QUEUED):
            made = made + 1
        mx.eval(made)

    # Several before the host waits: one alone takes as long to be asked for as to be done (60 us of an H200's 110).
    return _best(copies) / QUEUED, _best(lambda: mx.eval([source.sum() for _ in range(QUEUED)])) / QUEUED


# A network.


def weigh(network: Any, context_tokens: int) -> Weights:
    """Count a network that is settled. Reads 256 tokens for the size of its caches, where the window has room."""
    from lattice_cli.model.load import nbytes_of

    model_bytes = step_bytes = nbytes_of(network)
    layer_weights = head_weights = table_weights = table_bytes = 0
    modules = list(network.named_modules())
    for path, module in modules:
        count = _matrix(module)
        if not count:
            continue
        arrays = [module[name] for name in ("weight", "scales", "biases") if name in module]
        own_bytes = sum(int(array.nbytes) for array in arrays or module.stores)
        if "Embedding" in type(module).__name__:
            table_weights, table_bytes = table_weights + count, table_bytes + own_bytes
        elif path.endswith("lm_head"):
            head_weights += count
        else:
            share = _chosen(modules, path, module)
            layer_weights += round(count * share)
            step_bytes -= round(own_bytes * (1 - share))
    if head_weights:
        step_bytes -= table_bytes  # of the table itself a step reads one row
    else:
        head_weights = table_weights
    return Weights(model_bytes, step_bytes, layer_weights, head_weights, _token_bytes(network, context_tokens))


def _matrix(module: Any) -> int:
    """Weights of a linear or embedding layer or a stack of experts; 0 of anything else."""
    stacked = getattr(module, "expert_weights", None)  # kernels/experts.py
    if stacked is not None:
        return int(stacked)
    packed = getattr(module, "_packed", None)
    if packed is not None:
        return int(packed.rows) * int(packed.columns)
    if "weight" not in module or module.weight.ndim < 2 or "Conv" in type(module).__name__:
        return 0
    return int(module.weight.size) * 32 // int(module.bits) if "scales" in module else int(module.weight.size)


def _chosen(modules: list[tuple[str, Any]], path: str, module: Any) -> float:
    """Which share of a layer a token goes through: one, except of experts."""
    if "Switch" in type(module).__name__:
        experts = int(module.weight.shape[0])
    elif hasattr(module, "expert_weights"):
        experts = int(module.num_experts)
    else:
        return 1.0
    named = dict(modules)
    while path:
        path = path.rpartition(".")[0]
        for name in ("num_experts_per_tok", "top_k"):
            count = getattr(named.get(path), name, None)
            if isinstance(count, int):
                return min(1.0, count / experts)
    return 1.0


def _token_bytes(network: Any, context_tokens: int) -> float | None:
    """Keys and values of one token over all layers."""
    import mlx.core as mx

    from lattice_cli.kernels.state import DecoderState
    from lattice_cli.model.network import make_caches

    if context_tokens < 256:
        return None
    caches, sizes = make_caches(network), []
    for _ in range(2):  # a page of the native kernels is 128 tokens
        network(mx.arange(128)[None], cache=caches)
        mx.eval([cache.state for cache in caches])
        sizes.append(sum(cache.nbytes for cache in caches if isinstance(cache, DecoderState)))
    mx.clear_cache()
    return (sizes[1] - sizes[0]) / 128 + sum(map(_place_bytes, caches))


def _place_bytes(cache: Any) -> float:
    """Of one place in a cache of mlx-lm; 0 where a cache has no places, as in recurrent layers."""
    inner = getattr(cache, "caches", None)
    if isinstance(inner, (list, tuple)):
        return sum(map(_place_bytes, inner))
    arrays = [getattr(cache, name, None) for name in ("keys", "values")]
    return sum(array.nbytes / array.shape[2] for array in arrays if getattr(array, "ndim", 0) == 4)  # type: ignore[union-attr]
