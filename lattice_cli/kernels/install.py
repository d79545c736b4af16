"""Puts the native kernels into an mlx-lm network, and mlx's functions back afterwards. The one place that does.

Two things are replaced. Modules of a network: linear and embedding layers whose layout we know, quantized or not, and a
mixture's experts (experts.py) become packed ones, which compute from the packed weights; and where all layers are of a
kind that native/blocks.h knows, the inner model becomes one primitive (fused.py). Functions that model code calls,
process-wide: `mx.fast.rms_norm`, `rope` and `scaled_dot_product_attention`, `mx.conv1d`, `logsumexp` and `argmax`, and
`mlx.nn.silu` of mlx 0.32; `swiglu` and `precise_swiglu` (mlx_lm/models/activations.py) and `gated_delta_update`
(mlx_lm/models/gated_delta.py) of mlx-lm 0.32; and our own `draws.draw_likeliest` and `draws.draw_kept`. The
replacements take the same arguments and hand whatever is not float32 on a CPU to the originals. Knows mlx's modules;
knows no model.

Thread: worker
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from lattice_cli.kernels import experts
from lattice_cli.kernels.limits import give_back_memory

# In the fast mode these round their activations to 8 bits. The others, which bring most of the error and are less
# than half of the work (docs/log.md), round to 15.
_ROUGH = ("o_proj", "gate_proj", "up_proj", "in_proj_z", "out_proj")
_BITS, _GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
_FAST = {"rms_norm": "rms_norm", "rope": "rope", "scaled_dot_product_attention": "sdpa"}
_CORE = ("conv1d", "logsumexp", "argmax")
_originals: list[tuple[Any, str, Any]] = []  # (owner, name, what was there); empty when nothing is replaced


def pack_modules(network: Any, native: Any, *, exact: bool) -> int:
    """Replace every linear and embedding layer and every stack of experts that we know; returns how many.

    `exact`: activations stay float32, else they are rounded to 8 or 15 bits for each 32 columns (see `_ROUGH`).
    Layer by layer, so that memory holds one layer twice at most.
    """
    import mlx.core as mx

    count = 0
    for path, module in list(network.named_modules()):
        twin = packed_twin(module, native, path, exact=exact)
        if twin is not None:
            _set(network, path, twin)
            for each in module.modules():  # the list still holds them: let their arrays go now
                each.clear()
            count += 1
    mx.clear_cache()
    give_back_memory()
    return count


def _digits(path: str, *, exact: bool) -> int:
    return 0 if exact else 1 if path.endswith(_ROUGH) else 2


def packed_twin(module: Any, native: Any, path: str, *, exact: bool) -> Any | None:
    """A module that computes what a linear or embedding layer, or a mixture's experts, do from weights in our layout;
    None where we do not know them. `path` is the module's place.
    """
    import mlx.core as mx
    from mlx.nn.layers.embedding import Embedding
    from mlx.nn.layers.linear import Linear
    from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear

    from lattice_cli.kernels.packed import packed_classes

    kind, digits = type(module), _digits(path, exact=exact)
    if kind.__name__ == "SwitchGLU":
        each = [_digits(name, exact=exact) for name in experts.PROJECTIONS]
        return experts.packed_experts(module, native, each, _BITS)
    if kind in (QuantizedLinear, QuantizedEmbedding):
        if module.mode != "affine" or module.bits not in _BITS or module.group_size not in _GROUPS:
            return None
        if module.scales.ndim != 2:
            return None
        packed = native.pack(module.weight, module.scales, module.biases, module.group_size, module.bits)
    elif kind in (Linear, Embedding) and module.weight.dtype in (mx.float32, mx.bfloat16, mx.float16):
        packed = native.pack_dense(module.weight)
    else:
        return None
    linear, embedding = packed_classes()
    if kind in (QuantizedEmbedding, Embedding):
        return embedding(native, packed, digits)
    bias = module.bias.astype(mx.float32) if "bias" in module else None
    return linear(native, packed, digits, bias)


def put_functions(native: Any) -> None:
    """Replace the functions that model code calls. Idempotent; `take_functions` undoes it."""
    if _originals:
        return
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.models import activations, gated_delta

    from lattice_cli.kernels import draws

    _put(draws, "draw_likeliest", partial(native.draw_likeliest, draws.draw_likeliest))
    _put(draws, "draw_kept", partial(native.draw_kept, draws.draw_kept))
    for name, ours in _FAST.items():
        _put(mx.fast, name, getattr(native, ours))
    for name in _CORE:
        _put(mx, name, getattr(native, name))
    _put_in_models("swiglu", activations.swiglu, native.swiglu)
    _put(nn, "silu", partial(native.silu, nn.silu))  # type: ignore[attr-defined]
    precise = activations.precise_swiglu
    _put_in_models("precise_swiglu", precise, partial(native.precise_swiglu, precise))
    update = gated_delta.gated_delta_update
    _put_in_models("gated_delta_update", update, partial(native.gated_delta_update, update))


def put_gpu_functions() -> None:
    """On an NVIDIA GPU: the one function that has no kernel there. Idempotent; `take_functions` undoes it."""
    if _originals:
        return
    from mlx_lm.models import gated_delta as upstream

    from lattice_cli.kernels.gated_delta import replacement

    _put_in_models("gated_delta_update", upstream.gated_delta_update, replacement(upstream.gated_delta_update))


def take_functions() -> None:
    """mlx's and mlx-lm's own functions again. Idempotent."""
    while _originals:
        owner, name, original = _originals.pop()
        setattr(owner, name, original)


def _put_in_models(name: str, original: Any, replacement: Any) -> None:
    """Into every module of mlx-lm that has imported the original."""
    for module in [m for path, m in list(sys.modules.items()) if path.startswith("mlx_lm.models.")]:
        if getattr(module, name, None) is original:
            _put(module, name, replacement)


def _put(owner: Any, name: str, replacement: Any) -> None:
    _originals.append((owner, name, getattr(owner, name)))
    setattr(owner, name, replacement)


def _set(network: Any, path: str, module: Any) -> None:
    """Set the module at a dotted path; numbers are places in a list."""
    *parents, name = path.split(".")
    owner = network
    for part in parents:
        owner = owner[int(part)] if part.isdigit() else owner[part]
    owner[int(name) if name.isdigit() else name] = module
