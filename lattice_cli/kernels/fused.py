"""Decoders computed whole: finds the layers of an mlx-lm network that native/blocks.h knows and replaces the
inner model by one primitive over all of them.

Known: llama (mistral and others that mlx-lm maps to it), qwen2, qwen3 and qwen3_5 without experts, of mlx-lm 0.32,
wherever every linear layer is packed. A network with anything else keeps mlx-lm's own code, layer by layer through
the primitives that install.py places. Knows mlx-lm's module trees; knows no tensors' values.

Thread: worker
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from lattice_cli.kernels.state import DecoderState

_KNOWN = {
    ("mlx_lm.models.llama", "LlamaModel"),
    ("mlx_lm.models.qwen2", "Qwen2Model"),
    ("mlx_lm.models.qwen3", "Qwen3Model"),
    ("mlx_lm.models.qwen3_5", "Qwen3_5TextModel"),
}


class _Unknown(Exception):
    """What a network has that the blocks do not know."""


def fuse(network: Any, native: Any, *, half: bool) -> str | None:
    """Replace the inner model of a packed network by a fused one; None, or why it stays as it is.

    `half`: keys and values are kept in float16, else in float32.
    """
    holder = getattr(network, "language_model", network)
    inner = getattr(holder, "model", None)
    kind = (type(inner).__module__, type(inner).__qualname__)
    if kind not in _KNOWN:
        return f"`{getattr(network, 'model_type', kind[0])}` has no fused layers"
    try:
        decoder = _Builder(inner, native, half=half).build()
    except _Unknown as reason:
        return f"its layers are not fused: {reason}"
    fused = _fused_class()(inner, decoder)
    holder.model = fused
    object.__setattr__(network, "make_cache", decoder.make_cache)
    object.__setattr__(holder, "make_cache", decoder.make_cache)
    return None


@dataclass(frozen=True, slots=True)
class _Decoder:
    native: Any
    shape: Any
    network: Any

    def make_cache(self) -> list[DecoderState]:
        return [DecoderState(self.native, self.shape)]


@cache
def _fused_class() -> type[Any]:
    """Made on first use: this file must be importable without mlx."""
    from mlx.nn.layers.base import Module

    class FusedDecoder(Module):
        """Stands for mlx-lm's inner model: ids (rows, tokens) -> hidden states (rows, tokens, hidden)."""

        def __init__(self, inner: Any, decoder: _Decoder) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.inner = inner
            object.__setattr__(self, "_decoder", decoder)
            object.__setattr__(self, "_embed", inner.embed_tokens)
            object.__setattr__(self, "_inner", inner)

        def __call__(self, inputs: Any, cache: Any = None, input_embeddings: Any = None) -> Any:
            h = self._embed(inputs) if input_embeddings is None else input_embeddings
            if cache is None:
                cache = self._decoder.make_cache()
                cache[0].rows = [self._decoder.native.Sequence(self._decoder.shape) for _ in range(h.shape[0])]
            return cache[0].run(h, self._decoder.network)

        def __getattr__(self, name: str) -> Any:
            inner = object.__getattribute__(self, "_inner")
            return getattr(inner, name)

    return FusedDecoder


class _Builder:
    """Blocks of one network. Raises: _Unknown."""

    def __init__(self, inner: Any, native: Any, *, half: bool) -> None:
        self._inner = inner
        self._native = native
        self._half = half
        self._turns: dict[tuple[Any, ...], Any] = {}

    def build(self) -> _Decoder:
        layers = list(self._inner.layers)
        attention = [layer for layer in layers if hasattr(layer, "self_attn")]
        recurrent = [layer.linear_attn for layer in layers if hasattr(layer, "linear_attn")]
        if not attention or len(attention) + len(recurrent) != len(layers):
            raise _Unknown("a layer of another kind")
        delta = [self._delta_shape(net) for net in recurrent]
        keys = attention[0].self_attn
        shape = self._native.StateShape(
            attention_layers=len(attention),
            heads=_heads(keys)[1],
            head_dim=keys.k_proj.output_rows // _heads(keys)[1],
            half=self._half,
            recurrent_layers=len(delta),
            recurrent_floats=delta[0].state_floats if delta else 0,
        )
        blocks: list[Any] = []
        counts = [0, 0]  # of attention and recurrent layers so far: a layer's place in the state
        for layer in layers:
            if hasattr(layer, "self_attn"):
                blocks.append(self._attention(layer, counts[0], shape))
                counts[0] += 1
            else:
                blocks.append(self._delta(layer, counts[1], delta[counts[1]]))
                counts[1] += 1
            blocks.append(self._mlp(layer))
        norm = self._inner.norm
        return _Decoder(self._native, shape, self._native.network(blocks, norm.weight, norm.eps))

    def _attention(self, layer: Any, index: int, shape: Any) -> Any:
        attention, norm = layer.self_attn, layer.input_layernorm
        queries, keys = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        heads = _heads(attention)[0]
        return self._native.attention_block(
            norm=norm.weight,
            eps=norm.eps,
            q=self._matrix(attention.q_proj),
            k=self._matrix(attention.k_proj),
            v=self._matrix(attention.v_proj),
            o=self._matrix(attention.o_proj),
            turns=self._turning(attention.rope),
            shape=shape,
            layer=index,
            heads=heads,
            scale=attention.scale,
            window=self._inner.sliding_window if getattr(layer, "use_sliding", False) else 0,
            gated=type(attention).__name__ == "Qwen3NextAttention",
            q_norm=None if queries is None else queries.weight,
            k_norm=None if keys is None else keys.weight,
            head_eps=0.0 if queries is None else queries.eps,
        )

    def _delta_shape(self, net: Any) -> Any:
        return self._native.DeltaShape(
            key_heads=net.num_k_heads,
            value_heads=net.num_v_heads,
            key_size=net.head_k_dim,
            value_size=net.head_v_dim,
            taps=net.conv_kernel_size,
        )

    def _delta(self, layer: Any, index: int, shape: Any) -> Any:
        net, norm = layer.linear_attn, layer.input_layernorm
        if "bias" in net.conv1d:
            raise _Unknown("a convolution with a bias")
        return self._native.delta_block(
            norm=norm.weight,
            eps=norm.eps,
            qkv=self._matrix(net.in_proj_qkv),
            z=self._matrix(net.in_proj_z),
            a=self._matrix(net.in_proj_a),
            b=self._matrix(net.in_proj_b),
            out=self._matrix(net.out_proj),
            conv=net.conv1d.weight,
            a_log=net.A_log,
            dt_bias=net.dt_bias,
            out_norm=net.norm.weight,
            out_eps=net.norm.eps,
            shape=shape,
            layer=index,
        )

    def _mlp(self, layer: Any) -> Any:
        mlp, norm = layer.mlp, layer.post_attention_layernorm
        if not hasattr(mlp, "gate_proj"):
            raise _Unknown("a mixture of experts")
        return self._native.mlp_block(
            norm=norm.weight,
            eps=norm.eps,
            gate=self._matrix(mlp.gate_proj),
            up=self._matrix(mlp.up_proj),
            down=self._matrix(mlp.down_proj),
        )

    def _matrix(self, linear: Any) -> Any:
        from lattice_cli.kernels.packed import packed_classes

        if type(linear) is not packed_classes()[0]:
            raise _Unknown(f"a {type(linear).__name__} among its matrices")
        return linear.matrix()

    def _turning(self, rope: Any) -> Any:
        """The angles of a RoPE module; layers with equal ones share them, and compute them once a step."""
        from mlx.nn.layers.positional_encoding import RoPE

        kind = type(rope).__name__
        given: dict[str, Any]
        if type(rope) is RoPE:
            given = {"half": rope.dims // 2, "base": rope.base, "scale": rope.scale, "traditional": rope.traditional}
            key = tuple(given.values())
        elif kind in ("Llama3RoPE", "FactoredRope"):
            turned = getattr(rope, "traditional", False)
            given = {"half": rope._freqs.size, "base": None, "scale": 1.0, "traditional": turned}
            key = (*given.values(), *rope._freqs.tolist())
            given["periods"] = rope._freqs
        else:
            raise _Unknown(f"positions by {kind}")
        if key not in self._turns:
            self._turns[key] = self._native.turns(**given)
        return self._turns[key]


def _heads(attention: Any) -> tuple[int, int]:
    """Query heads and key heads, under the names that mlx-lm's families give them."""
    if hasattr(attention, "n_heads"):
        return attention.n_heads, attention.n_kv_heads
    return attention.num_attention_heads, attention.num_key_value_heads
