"""Whether the fused steps of cuda_decoder.py serve a network on this machine's NVIDIA GPU; tried when it is loaded.

Thread: worker
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger("lattice.kernels")

_ATTRIBUTES = {"multiprocessors": 16, "shared_bytes": 97, "major": 75, "minor": 76}  # CUdevice_attribute
_KEPT_BYTES = 2048  # of shared memory, for `Plan.tail_bytes`
_LEAST_CAPABILITY = (8, 0)  # asynchronous copies, and bfloat16 in tensor cores
# How far logits may be from mlx-lm's, as a share of their size: so many times as far as mlx-lm's are from each other
# when its rounding differs, and some more. Deep networks of random weights have 20% of that, trained ones 1 or 2.
_MOST_TIMES, _MORE = 2.0, 0.02


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a kernel must know of a GPU. `shared_bytes`: what one block may have."""

    multiprocessors: int
    shared_bytes: int
    capability: tuple[int, int]


def read_gpu() -> Gpu | None:
    """The GPU that mlx uses, as its driver tells it; None where it tells nothing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    found: dict[str, int] = {}
    for name, number in _ATTRIBUTES.items():
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device):
            return None
        found[name] = value.value
    return Gpu(found["multiprocessors"], found["shared_bytes"], (found["major"], found["minor"]))


def keep_compiled(gpu: Gpu | None, folder: Path, say: Callable[[str], object]) -> None:
    """Keep what is compiled for the GPU in `folder`, our own kernels and mlx's, and say a line before compiling.

    mlx keeps its own where temporary files are, which a restart may empty, and looks for the place only once.
    """
    if gpu is None:
        return
    import mlx.core as mx

    from lattice_cli.kernels import cuda_source
    from lattice_cli.kernels.cuda_compiler import Compiler, Uncompilable

    place = folder / "mlx-{}-sm{}{}".format(mx.__version__, *gpu.capability)  # type: ignore[attr-defined]
    try:
        place.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("MLX_PTX_CACHE_DIR", str(place))
    except OSError as error:
        log.debug("mlx's kernels are not kept: %s", error)
    try:
        cuda_source.use(Compiler(gpu.capability, folder, say))
    except Uncompilable as reason:
        log.info("%s; mlx compiles the kernels, in every process", reason)


def unfit(gpu: Gpu | None) -> str | None:
    """Why a GPU fuses no network's steps; None where it may."""
    if gpu is None:
        return "the steps are not fused: the GPU's driver does not answer"
    if gpu.capability < _LEAST_CAPABILITY:
        return "the steps are not fused: they need compute capability {}.{}".format(*_LEAST_CAPABILITY)
    return None


def doubt(network: Any, gpu: Gpu) -> str | None:
    """Why `fuse_checked` would not even try; None where it would. The network's weights need not have been read."""
    from lattice_cli.kernels import cuda_decoder

    return unfit(gpu) or cuda_decoder.doubt(network, gpu.multiprocessors, gpu.shared_bytes - _KEPT_BYTES)


def fuse_checked(network: Any, gpu: Gpu | None, caches: Sequence[list[Any]]) -> str | None:
    """Fuse a network's steps and compare some with mlx-lm's own, which gets fresh `caches` (two of them); None, or why
    the network stays as it was.

    Cost: the compiler's, up to a minute at the first start with a network of this shape; then about a second.
    """
    from lattice_cli.kernels import cuda_decoder

    reason = unfit(gpu)
    if gpu is None or reason is not None:
        return reason
    kind = type(network)
    reason = cuda_decoder.fuse(network, gpu.multiprocessors, gpu.shared_bytes - _KEPT_BYTES)
    if reason is not None:
        return reason
    try:
        error, allowed = _errors(network, kind, caches)
        network.warm()
    except (RuntimeError, ValueError) as failure:
        network.__class__ = kind
        log.debug("a fused step failed", exc_info=failure)
        return f"the steps are not fused: {str(failure).splitlines()[0]}"
    if not error < allowed:  # also where one is no number
        network.__class__ = kind
        return f"the steps are not fused: they differ from mlx-lm's by {error:.1%}, more than rounding explains"
    log.info("fused steps on the GPU, %.2g beside mlx-lm's", error)
    return None


def _errors(network: Any, kind: Any, caches: Sequence[list[Any]]) -> tuple[float, float]:
    """How far the logits after three tokens are from mlx-lm's, as a share of their size, and how far they may be. Two
    of the tokens are read in steps and as a prompt; the worse counts.
    """
    import mlx.core as mx

    ids = mx.array([[1, 2, 3]], dtype=mx.uint32)
    holder = getattr(network, "language_model", network)
    embedded = holder.model.embed_tokens(ids)
    nudge = mx.where(mx.random.bernoulli(0.5, embedded.shape, key=mx.random.key(1)), 1.0, -1.0)
    nudged = embedded + (embedded * nudge * mx.finfo(embedded.dtype).eps).astype(embedded.dtype)
    # Token by token: mlx compiles products of quantized weights with several rows for most of a minute.
    for at in range(3):
        now = ids[:, at : at + 1]
        theirs = kind.__call__(network, now, cache=caches[0])[0, -1].astype(mx.float32)
        other = kind.__call__(network, now, cache=caches[1], input_embeddings=nudged[:, at : at + 1])
    found = []
    for chunks in ((1, 1, 1), (2, 1)):
        cache, at = network.make_cache(), 0
        for count in chunks:
            ours = network(ids[:, at : at + count], cache=cache)
            at += count
        found.append(mx.linalg.norm(ours[0, -1].astype(mx.float32) - theirs))
    rounding = mx.linalg.norm(other[0, -1].astype(mx.float32) - theirs)
    size = mx.linalg.norm(theirs)
    return float(mx.stack(found).max() / size), float(_MOST_TIMES * rounding / size + _MORE)
