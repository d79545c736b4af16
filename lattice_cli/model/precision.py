"""Which number format a network computes in, chosen after loading.

MLX on an x86 CPU multiplies quantized, bfloat16 and float16 matrices in scalar code (1-3 GFLOP/s
against 100 and more for float32 through BLAS), so there everything becomes float32 where memory
allows. Knows mlx modules; knows no model.

Thread: worker
"""

from __future__ import annotations

from typing import Any


def parameter_count(network: Any) -> int:
    """Weights of a network, packed ones counted one by one; those of the native kernels, which stay as they are
    (kernels/packed.py), not at all.
    """
    import mlx.core as mx

    packed: dict[str, int] = {
        path: module.weight.size * 32 // module.bits
        for path, module in network.named_modules()
        if "scales" in module and hasattr(module, "bits")
    }
    plain = 0
    for name, array in leaves(network):
        owner, _, kind = name.rpartition(".")
        if (owner not in packed or kind == "bias") and array.dtype != mx.uint8:
            plain += int(array.size)
    return plain + sum(packed.values())


def computes_slowly(network: Any) -> bool:
    """Whether any weight is quantized or in half precision."""
    import mlx.core as mx

    slow = (mx.float16, mx.bfloat16, mx.uint32)
    return any(array.dtype in slow for _, array in leaves(network))


def packed_note(parameters: int, memory_bytes: int) -> str | None:
    """Why `parameters` weights stay packed on a CPU: in float32 they need over half of memory. None: they fit."""
    needed = 4 * parameters
    if needed <= memory_bytes // 2:
        return None
    return (
        f"weights stay packed, which is slow on a CPU: in float32 they would need {needed / 1e9:.1f} GB, "
        f"more than half of the {memory_bytes / 1e9:.1f} GB of memory"
    )


def make_dense(network: Any) -> None:
    """Replace every quantized linear and embedding by a float32 one and cast the rest, layer by layer.

    Each layer's packed weights are freed before the next is expanded. Experts' stacks stay packed.
    Cost: about a second for each 300 M weights.
    """
    import mlx.core as mx

    modules = [(path, module) for path, module in network.named_modules() if "scales" in module]
    for path, module in modules:
        twin = _dense_twin(module)
        if twin is not None:
            _put(network, path, twin)
            module.clear()  # `modules` still holds it: let its arrays go now
    remaining = leaves(network)
    while remaining:
        name, array = remaining.pop()
        if array.dtype in (mx.float16, mx.bfloat16):
            array = array.astype(mx.float32)
            mx.eval(array)
            _put(network, name, array)
        del array
    mx.clear_cache()


def expand(module: Any) -> Any:
    """The weight of a quantized module in float32, (out, in) or with a stack of experts before; not evaluated.

    Affine codes are `code * scale + bias`, computed in float32.
    """
    import mlx.core as mx

    affine = module.mode == "affine"
    return mx.dequantize(
        module.weight,
        module.scales.astype(mx.float32) if affine else module.scales,
        module.biases.astype(mx.float32) if affine else None,
        group_size=module.group_size,
        bits=module.bits,
        mode=module.mode,
    ).astype(mx.float32)


def half_format(network: Any) -> Any | None:
    """The half-precision format of most matrices and scales; None where there is none."""
    import mlx.core as mx

    halves = [a.dtype for _, a in leaves(network) if a.ndim > 1 and a.dtype in (mx.float16, mx.bfloat16)]
    return max((mx.float16, mx.bfloat16), key=halves.count) if halves else None


def follow_matrices(network: Any) -> None:
    """Cast float32 vectors (norms, biases) to the format of a half-precision network's matrices.

    For GPUs: one float32 norm would make every activation float32 and every scale be cast in each step.
    """
    import mlx.core as mx

    common = half_format(network)
    if common is None:
        return
    for name, array in leaves(network):
        if array.dtype == mx.float32 and array.ndim == 1:
            _put(network, name, array.astype(common))


def leaves(network: Any) -> list[tuple[str, Any]]:
    """(dotted name, array) of every parameter."""
    from mlx.utils import tree_flatten

    flat: Any = tree_flatten(network.parameters())
    return list(flat)


def _dense_twin(module: Any) -> Any | None:
    """A float32 module that computes the same as a quantized linear or embedding; None for any other."""
    import mlx.core as mx
    from mlx.nn.layers.embedding import Embedding
    from mlx.nn.layers.linear import Linear
    from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear

    if not isinstance(module, (QuantizedLinear, QuantizedEmbedding)):
        return None
    twin: Any = Linear(1, 1, bias=False) if isinstance(module, QuantizedLinear) else Embedding(1, 1)
    twin.weight = expand(module)
    if "bias" in module:
        twin.bias = module.bias.astype(mx.float32)
    twin.eval()
    mx.eval(twin.parameters())
    return twin


def _put(network: Any, path: str, value: Any) -> None:
    """Set the module or array at a dotted path; numbers are places in a list."""
    *parents, name = path.split(".")
    owner = network
    for part in parents:
        owner = owner[int(part)] if part.isdigit() else owner[part]
    owner[int(name) if name.isdigit() else name] = value
