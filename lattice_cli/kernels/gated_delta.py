"""The scan of Gated DeltaNet on an NVIDIA GPU, for networks whose steps are not fused (experts, say).

UPSTREAM: mlx-lm 0.32's `gated_delta_update` (mlx_lm/models/gated_delta.py) has a kernel for Metal alone; elsewhere it
walks through time token by token, at some 20 launches each. This one takes its place where it fits and hands everything
else to the original. The kernel is cuda/scan.cuh's: state in registers, one pass over time.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from lattice_cli.kernels.cuda_source import CudaKernel

Array = Any  # mlx.core.array: this file must be importable without mlx

_THREADS, _VALUES = 128, 16  # of a block: its threads, and how many of a head's values it has


def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
    """What to put in the place of mlx-lm's function."""
    return partial(gated_delta_update, original)


def gated_delta_update(
    original: Callable[..., Any],
    q: Array,
    k: Array,
    v: Array,
    a: Array,
    b: Array,
    A_log: Array,
    dt_bias: Array,
    state: Array | None = None,
    mask: Array | None = None,
    **others: Any,
) -> tuple[Array, Array]:
    """Outputs (rows, tokens, value heads, value dim) and the new state (rows, value heads, value dim, key dim).

    As mlx-lm's: q, k (rows, tokens, key heads, key dim) normalised; v (rows, tokens, value heads, value dim); a, b
    (rows, tokens, value heads); mask (rows, tokens) or None. Source: https://arxiv.org/abs/2412.06464.
    """
    import mlx.core as mx

    rows, tokens, key_heads, key_dim = k.shape
    value_heads, value_dim = v.shape[2:]
    known = (mx.float32, mx.bfloat16, mx.float16)
    unlike = any(others.get(name) for name in ("lower_bound", "allow_neg_eigval")) or not others.get("use_kernel", True)
    if (
        unlike
        or q.dtype not in known
        or any(one.dtype != q.dtype for one in (k, v, a, b))
        or key_dim % 32
        or key_dim > 256
        or value_dim % _VALUES
        or value_heads % key_heads
        or (mask is not None and mask.shape != (rows, tokens))
    ):
        return original(q, k, v, a, b, A_log, dt_bias, state, mask, **others)  # type: ignore[no-any-return]
    if state is None:
        state = mx.zeros((rows, value_heads, value_dim, key_dim), dtype=mx.float32)
    kernel = _kernel(str(q.dtype), key_heads, value_heads, key_dim, value_dim, mask is not None)
    shape = mx.array([tokens, 0, 0, 0], dtype=mx.int32)
    inputs = [q, k, v, a, b, A_log.astype(mx.float32), dt_bias.astype(mx.float32), state.astype(mx.float32), shape]
    if mask is not None:
        inputs.append(mask.astype(mx.bool_))
    blocks = rows * value_heads * (value_dim // _VALUES)
    out, after = kernel(inputs, blocks, [v.shape, state.shape], [q.dtype, mx.float32])
    return out, after.astype(state.dtype)


@lru_cache(maxsize=64)
def _kernel(dtype: str, key_heads: int, value_heads: int, key_dim: int, value_dim: int, masked: bool) -> CudaKernel:
    number = "float" if "float32" in dtype else "k::u16"
    half = str("bfloat16" not in dtype and "float16" in dtype).lower()
    shares, head_numbers = value_dim // _VALUES, value_dim * key_dim
    keys, values = key_heads * key_dim, value_heads * value_dim
    body = f"""
  const int share = k::block_index() % {shares}, head = k::block_index() / {shares} % {value_heads};
  const int row = k::block_index() / {shares * value_heads};
  const long at = (long(row) * {value_heads} + head) * {head_numbers};
  const k::Scan<{number}> all{{(const {number}*)q, (const {number}*)keys, (const {number}*)v, {keys}, {keys}, {values},
    (const {number}*)a, (const {number}*)b, a_log, dt_bias, nullptr, {"(const bool*)mask" if masked else "nullptr"},
    shape[0]}};
  k::scan<{number}, {half}, false, {key_heads}, {value_heads}, {key_dim}, {value_dim}>(
    all, row, head, share, state + at, after + at, ({number}*)out);
"""
    names = ("q", "keys", "v", "a", "b", "a_log", "dt_bias", "state", "shape", *(("mask",) if masked else ()))
    shared = 4 * 16 * (2 * key_dim + _VALUES + 3)
    sources = ("portable.cuh", "scan.cuh")
    return CudaKernel("gated_delta", sources, "", body, names, ("out", "after"), threads=_THREADS, shared_bytes=shared)
