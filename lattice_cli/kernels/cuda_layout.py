"""A network's weights laid out for the fused decoding step on an NVIDIA GPU: one buffer a layer, which mlx's own
products read too, through views.

Known: llama (mistral and others that mlx-lm maps to it), qwen3 and qwen3_5 without experts, of mlx-lm 0.32, in bfloat16
or float16, dense or in mlx's affine quantization with 4 or 8 bits and groups of 32 or 64. Knows mlx-lm's module trees.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lattice_cli.kernels.cuda_sizes import Layout, Sizes, UnknownLayers, aligned

Array = Any  # mlx.core.array: this file must be importable without mlx

WORD_BYTES = 4
_KNOWN = {
    ("mlx_lm.models.llama", "LlamaModel"),
    ("mlx_lm.models.qwen3", "Qwen3Model"),
    ("mlx_lm.models.qwen3_5", "Qwen3_5TextModel"),
}


@dataclass(frozen=True, slots=True)
class Part:
    """Tensors that lie one after the other in a layer's buffer, and how `cuda/step.cuh` calls their place."""

    name: str
    tensors: tuple[Array, ...]


def read_sizes(network: Any) -> Sizes:
    """Raises: UnknownLayers."""
    import mlx.core as mx

    holder, inner = parts_of(network)
    kind = (type(inner).__module__, type(inner).__qualname__)
    if kind not in _KNOWN:
        raise UnknownLayers(f"`{getattr(network, 'model_type', kind[0])}` has no fused step")
    layers = list(inner.layers)
    attention = next((layer.self_attn for layer in layers if hasattr(layer, "self_attn")), None)
    delta = next((layer.linear_attn for layer in layers if hasattr(layer, "linear_attn")), None)
    if attention is None:
        raise UnknownLayers("no attention")
    if not hasattr(layers[0].mlp, "gate_proj"):
        raise UnknownLayers("a mixture of experts")
    if getattr(inner, "sliding_window", None) and any(getattr(layer, "use_sliding", False) for layer in layers):
        raise UnknownLayers("a sliding window")
    dtype = _dtype_of(inner.embed_tokens)
    if dtype not in (mx.bfloat16, mx.float16):
        raise UnknownLayers(f"numbers of {dtype}")
    heads, kv_heads = _heads(attention)
    head_dim = _rows(attention.k_proj) // kv_heads
    embedding = layout_of(inner.embed_tokens)
    head = getattr(holder, "lm_head", inner.embed_tokens)
    if delta is not None and ("bias" in delta.conv1d or delta.conv_kernel_size != 4):
        raise UnknownLayers("a convolution of another kind")
    return Sizes(
        half=dtype == mx.float16,
        linear=layout_of(layers[0].mlp.down_proj),
        embedding=embedding,
        head=layout_of(head),
        hidden=int(inner.norm.weight.shape[0]),
        intermediate=_rows(layers[0].mlp.gate_proj),
        vocabulary=_rows(head),
        eps=float(inner.norm.eps),
        pattern=tuple(hasattr(layer, "linear_attn") for layer in layers),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        turned=int(turns_of(attention.rope, head_dim).shape[0]),
        scale=float(attention.scale),
        gated=type(attention).__name__ == "Qwen3NextAttention",
        head_norm=hasattr(attention, "q_norm"),
        key_heads=delta.num_k_heads if delta is not None else 1,
        value_heads=delta.num_v_heads if delta is not None else 1,
        key_dim=delta.head_k_dim if delta is not None else 32,
        value_dim=delta.head_v_dim if delta is not None else 32,
    )


def check_sizes(sizes: Sizes) -> None:
    """Raises: UnknownLayers for shapes that the kernel's loops do not cover."""
    widths = {"hidden": sizes.hidden, "intermediate": sizes.intermediate, "attention": sizes.heads * sizes.head_dim}
    for name, width in widths.items():
        if width % 64:
            raise UnknownLayers(f"{name} width {width}, not a multiple of 64")
    if any(sizes.pattern) and (
        sizes.key_dim % 32 or sizes.value_dim % 32 or sizes.key_dim > 256 or sizes.value_dim > 256
    ):
        raise UnknownLayers(f"recurrent heads of {sizes.key_dim} and {sizes.value_dim}")
    if sizes.head_dim % 32 or sizes.head_dim > 256 or sizes.heads % sizes.kv_heads:
        raise UnknownLayers(f"heads of {sizes.head_dim}")


def parts_of(network: Any) -> tuple[Any, Any]:
    """The module that holds the head, and the decoder in it."""
    holder = getattr(network, "language_model", network)
    return holder, getattr(holder, "model", None)


def layout_of(module: Any) -> Layout:
    """Raises: UnknownLayers."""
    name = type(module).__name__
    if "bias" in module:
        raise UnknownLayers(f"a {name} with a bias")
    if name in ("Linear", "Embedding"):
        return Layout(16, 64)
    if name in ("QuantizedLinear", "QuantizedEmbedding") and module.mode == "affine":
        if module.bits in (4, 8) and module.group_size in (32, 64):
            return Layout(module.bits, module.group_size)
        raise UnknownLayers(f"{module.bits} bits in groups of {module.group_size}")
    raise UnknownLayers(f"a {name} among its matrices")


def turns_of(rope: Any, head_dim: int) -> Array:
    """Angles a position, (pairs,) float32. Raises: UnknownLayers."""
    import mlx.core as mx
    from mlx.nn.layers.positional_encoding import RoPE

    if getattr(rope, "traditional", False):
        raise UnknownLayers("positions that turn neighbouring columns")
    if type(rope) is RoPE:
        pairs = mx.arange(0, rope.dims // 2, dtype=mx.float32)
        return rope.scale * mx.power(float(rope.base), -2.0 * pairs / rope.dims)
    if type(rope).__name__ in ("Llama3RoPE", "FactoredRope"):
        return 1.0 / rope._freqs.astype(mx.float32)
    raise UnknownLayers(f"positions by {type(rope).__name__}")


def layer_parts(layer: Any, sizes: Sizes) -> tuple[str, list[Part]]:
    """The kind of a layer and its tensors, in the order of its buffer. Raises: UnknownLayers."""
    import mlx.core as mx

    def wide(array: Array) -> Array:
        return array.astype(mx.float32)

    modules = layer_modules(layer)
    parts = [Part("IN_NORM", (wide(layer.input_layernorm.weight),))]
    parts.append(Part("POST_NORM", (wide(layer.post_attention_layernorm.weight),)))
    for name, owners in modules.items():
        parts += _matrix(name, sizes.linear, *owners)
    if hasattr(layer, "linear_attn"):
        net, kind = layer.linear_attn, "Delta"
        conv = wide(net.conv1d.weight).reshape(sizes.channels, 4)  # (channel, tap, 1)
        parts += [Part("CONV", (conv,)), Part("A_LOG", (wide(net.A_log),)), Part("DT_BIAS", (wide(net.dt_bias),))]
        parts.append(Part("OUT_NORM", (wide(net.norm.weight),)))
    else:
        net, kind = layer.self_attn, "Attention"
        none = mx.ones((sizes.head_dim,), dtype=mx.float32)
        for name, norm in (("Q_NORM", "q_norm"), ("K_NORM", "k_norm")):
            parts.append(Part(name, (wide(getattr(net, norm).weight) if sizes.head_norm else none,)))
    return kind, parts


def _matrix(name: str, layout: Layout, *modules: Any) -> Iterator[Part]:
    """Matrices joined row by row. Raises: UnknownLayers where one is stored in another way."""
    for module in modules:
        if layout_of(module) != layout:
            raise UnknownLayers("matrices that are quantized in different ways")
    yield Part(name, tuple(module.weight for module in modules))
    quantized = layout.bits < 16
    yield Part(f"{name}_SCALES", tuple(module.scales for module in modules) if quantized else ())
    yield Part(f"{name}_BIASES", tuple(module.biases for module in modules) if quantized else ())


def places(parts: Sequence[Part]) -> tuple[dict[str, int], int]:
    """Byte offsets of the parts, and the bytes of the buffer."""
    found: dict[str, int] = {}
    end = 0
    for part in parts:
        found[part.name] = end
        end += aligned(sum(int(tensor.nbytes) for tensor in part.tensors))
    return found, end


def buffer(parts: Sequence[Part]) -> tuple[Array, list[Array]]:
    """One array with all tensors, and views of them in it, in order: they share its memory.

    Its numbers are words of 4 bytes, which is what every tensor is a multiple of: mlx counts a dimension in 31 bits,
    and an embedding can have more bytes than that.
    """
    import mlx.core as mx

    pieces: list[Array] = []
    spans: list[tuple[int, Array]] = []
    end = 0
    for part in parts:
        for tensor in part.tensors:
            pieces.append(mx.contiguous(tensor).reshape(-1).view(mx.uint32))
            spans.append((end, tensor))
            end += int(tensor.nbytes)
        fill = aligned(end) - end
        if fill:
            pieces.append(mx.zeros((fill // WORD_BYTES,), dtype=mx.uint32))
            end += fill
    whole = mx.concatenate(pieces)
    mx.eval(whole)
    views = [_words(whole, at, int(t.nbytes)).view(t.dtype).reshape(t.shape) for at, t in spans]
    mx.eval(views)
    return whole, views


def _words(whole: Array, at: int, nbytes: int) -> Array:
    """A part of a buffer by its bytes."""
    return whole[at // WORD_BYTES : (at + nbytes) // WORD_BYTES]


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix for prompts, (outputs, columns), with scales and biases where it is quantized."""

    layout: Layout
    weights: tuple[Array, ...]

    def __call__(self, x: Array) -> Array:
        """(rows, tokens, columns) -> (rows, tokens, outputs).

        UPSTREAM: mlx 0.32's products of quantized weights with many rows are compiled for each size on first use, for
        43 seconds and more on an H200. Spreading the weights out costs a chunk what reading them twice does.
        """
        import mlx.core as mx

        if self.layout.bits == 16:
            return x @ self.weights[0].T
        weights, scales, biases = self.weights
        dense = mx.dequantize(weights, scales, biases, self.layout.group, self.layout.bits)
        return x @ dense.T


@dataclass(frozen=True, slots=True)
class LayerParts:
    """What prompts use of a layer's buffer: products, and small things in float32 under the names of their places."""

    recurrent: bool
    products: dict[str, Product]  # IN: the projections of its input as one; OUT, DOWN, and GATE and UP, or both as one
    small: dict[str, Array]


def lay_out(layer: Any, sizes: Sizes) -> tuple[str, dict[str, int], Array, LayerParts]:
    """A layer's kind, the places of its tensors, its buffer, and its parts; its modules use the buffer from now on.
    Cost: as copying it.
    """
    kind, parts = layer_parts(layer, sizes)
    whole, views = buffer(parts)
    by_name: dict[str, list[Array]] = {}
    left = iter(views)
    for part in parts:
        by_name[part.name] = [next(left) for _ in part.tensors]
    modules = layer_modules(layer)
    for name, owners in modules.items():
        for number, owner in enumerate(owners):
            owner.weight = by_name[name][number]
            if by_name[f"{name}_SCALES"]:
                owner.scales, owner.biases = by_name[f"{name}_SCALES"][number], by_name[f"{name}_BIASES"][number]
    offsets, _ = places(parts)
    products: dict[str, Product] = {}
    for name in modules:
        stored = [each for each in (name, f"{name}_SCALES", f"{name}_BIASES") if by_name[each]]
        products[name] = Product(sizes.linear, tuple(_rows_of(whole, offsets[each], by_name[each]) for each in stored))
    if sizes.linear.bits == 16:  # they lie one after the other, with no scales between
        gate_up = [*by_name["GATE"], *by_name["UP"]]
        assert offsets["UP"] - offsets["GATE"] == gate_up[0].nbytes
        products["GATE_UP"] = Product(sizes.linear, (_rows_of(whole, offsets["GATE"], gate_up),))
    small = {name: views[0] for name, views in by_name.items() if name.partition("_")[0] not in modules}
    small |= {name: by_name[name][0] for name in ("IN_NORM", "OUT_NORM") if name in by_name}
    return kind, offsets, whole, LayerParts(kind == "Delta", products, small)


def _rows_of(whole: Array, at: int, parts: Sequence[Array]) -> Array:
    """Matrices that lie one after the other as one."""
    import mlx.core as mx

    rows = sum(int(part.shape[0]) for part in parts)
    view = _words(whole, at, sum(int(part.nbytes) for part in parts)).view(parts[0].dtype).reshape(rows, -1)
    mx.eval(view)
    return view


def product_of(module: Any) -> Product:
    """A linear or embedding module's matrix."""
    layout = layout_of(module)
    return Product(layout, (module.weight,) if layout.bits == 16 else (module.weight, module.scales, module.biases))


def matrix_buffer(module: Any) -> Array:
    """One matrix in a buffer of its own, which its module uses from now on: see `matrix_places`."""
    parts = list(_matrix("M", layout_of(module), module))
    whole, views = buffer(parts)
    module.weight = views[0]
    if len(views) > 1:
        module.scales, module.biases = views[1:]
    return whole


def layer_modules(layer: Any) -> dict[str, tuple[Any, ...]]:
    """The linear modules by the name of their place."""
    mlp = layer.mlp
    found: dict[str, tuple[Any, ...]] = {"GATE": (mlp.gate_proj,), "UP": (mlp.up_proj,), "DOWN": (mlp.down_proj,)}
    if hasattr(layer, "linear_attn"):
        net = layer.linear_attn
        found |= {"IN": (net.in_proj_qkv, net.in_proj_z, net.in_proj_b, net.in_proj_a), "OUT": (net.out_proj,)}
    else:
        net = layer.self_attn
        found |= {"IN": (net.q_proj, net.k_proj, net.v_proj), "OUT": (net.o_proj,)}
    return found


def _dtype_of(embedding: Any) -> Any:
    return embedding.scales.dtype if "scales" in embedding else embedding.weight.dtype


def _rows(module: Any) -> int:
    return int(module.weight.shape[0])


def _heads(attention: Any) -> tuple[int, int]:
    """Query heads and key heads, under the names that mlx-lm's families give them."""
    if hasattr(attention, "n_heads"):
        return attention.n_heads, attention.n_kv_heads
    return attention.num_attention_heads, attention.num_key_value_heads
