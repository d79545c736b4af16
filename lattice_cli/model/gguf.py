"""A GGUF file -> weights and config as mlx-lm knows them.

Knows the tensor names and metadata of llama, qwen2 and qwen3; knows no blocks and no network.

Thread: worker
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lattice_cli.errors import BrokenWeights, UnknownFormat
from lattice_cli.model.gguf_header import GgufHeader, GgufTensor, Value, type_name
from lattice_cli.model.gguf_tensors import EXACT, read_tensor

if TYPE_CHECKING:
    import mlx.core as mx

ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_FACTORS = "rope_freqs.weight"  # the tensor of `GgufModel.rope_factors`

_MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)\Z")


@dataclass(frozen=True, slots=True)
class GgufModel:
    """`weights` by mlx-lm parameter name; `quantization` by module path ({"group_size", "bits"});
    `rope_factors` (head width / 2,) where the file brings them.
    """

    config: dict[str, Any]
    weights: dict[str, mx.array]
    quantization: dict[str, dict[str, int]]
    rope_factors: mx.array | None
    notes: tuple[str, ...]


def read_gguf(header: GgufHeader, read: Callable[[GgufHeader, GgufTensor], dict[str, Any]] = read_tensor) -> GgufModel:
    """Read all weights of a file. Cost: about a second for each GB, more for re-quantized types; nothing where `read`
    is `outline_tensor`, which stands for the weights.

    Raises: UnknownFormat (architecture, rope scaling or tensor type we do not read), BrokenWeights.
    """
    import mlx.core as mx

    config = gguf_config(header)
    weights: dict[str, mx.array] = {}
    quantization: dict[str, dict[str, int]] = {}
    requantized: set[str] = set()
    factors = None
    for tensor in header.tensors:
        if tensor.name == ROPE_FACTORS:
            factors = read(header, tensor)["weight"]
            continue
        path, kind = parameter_of(tensor.name)
        arrays = read(header, tensor)
        heads = rotary_heads(config, path)
        if heads:
            arrays = {name: half_split(array, heads) for name, array in arrays.items()}
        if "scales" in arrays:
            quantization[path] = _layout(tensor, arrays)
            if tensor.type_id not in EXACT:
                requantized.add(type_name(tensor.type_id))
        weights |= {f"{path}.{kind if name == 'weight' else name}": array for name, array in arrays.items()}
    weights |= {name: mx.zeros((config["hidden_size"],)) for name in missing_biases(config, weights)}
    named = ", ".join(sorted(requantized))
    notes = (f"{named} weights of `{header.path.name}` were quantized again to 8 bit",) if requantized else ()
    return GgufModel(config, weights, quantization, factors, notes)


def parameter_of(name: str) -> tuple[str, str]:
    """(module path, "weight" or "bias") of a tensor; a name we do not know stays as it is."""
    match = _NAME.match(name)
    if not match or match[2] not in _MODULES:
        return name.rpartition(".")[0], name.rpartition(".")[2]
    module = _MODULES[match[2]]
    return (f"model.layers.{match[1]}.{module}" if match[1] else module), match[3]


def rotary_heads(config: dict[str, Any], path: str) -> int | None:
    """How many heads a projection has whose rows are in ggml's rotary order; None where they are in mlx-lm's."""
    if config["model_type"] != "llama" or not path.endswith((".q_proj", ".k_proj")):
        return None
    return int(config["num_attention_heads" if path.endswith(".q_proj") else "num_key_value_heads"])


def half_split(array: mx.array, heads: int) -> mx.array:
    """Rows of a query or key projection from ggml's rotary order (pairs i, i + 1) to mlx-lm's (i, i + half).

    Undoes `permute` of llama.cpp's convert_hf_to_gguf.py. `array` is (heads * width, ...).
    """
    rows = array.shape[0]
    split = array.reshape(heads, rows // heads // 2, 2, *array.shape[1:])  # (heads, half, 2, ...)
    return split.swapaxes(1, 2).reshape(array.shape)  # (heads * width, ...)


def missing_biases(config: dict[str, Any], names: Collection[str]) -> list[str]:
    """Biases of zeros, (hidden,), to be added: mlx-lm's llama wants one on all four projections or none, and a
    file may have three.
    """
    if not config.get("attention_bias"):
        return []
    wanted = (f"model.layers.{layer}.self_attn.o_proj.bias" for layer in range(config["num_hidden_layers"]))
    return [name for name in wanted if name not in names]


def _layout(tensor: GgufTensor, arrays: dict[str, mx.array]) -> dict[str, int]:
    return {
        "group_size": tensor.shape[-1] // arrays["scales"].shape[-1],
        "bits": arrays["weight"].shape[-1] * 32 // tensor.shape[-1],
    }


# Config.


def gguf_config(header: GgufHeader) -> dict[str, Any]:
    """mlx-lm's config of a file, from its metadata.

    Raises: UnknownFormat, BrokenWeights.
    """
    architecture = header.architecture
    if architecture not in ARCHITECTURES:
        raise UnknownFormat(
            f"`{header.path}` is a `{architecture}` model, and GGUF is read for {', '.join(ARCHITECTURES)} only",
            hint="use the model's safetensors folder",
        )
    if _number(header, "expert_count", 0):
        raise UnknownFormat(f"`{header.path}` is a mixture of experts, which is not read from GGUF")
    names = {tensor.name: tensor for tensor in header.tensors}
    embedding = names.get("token_embd.weight")
    if embedding is None:
        raise BrokenWeights(f"`{header.path}` has no `token_embd.weight`")
    hidden, heads = int(_number(header, "embedding_length")), int(_number(header, "attention.head_count"))
    width = int(_number(header, "attention.key_length", hidden // max(heads, 1)))
    rotated = int(_number(header, "rope.dimension_count", width))
    if rotated != width or (architecture == "qwen2" and width * heads != hidden):
        raise UnknownFormat(f"`{header.path}` has heads of an uncommon shape ({width} wide, {rotated} rotated)")
    return {
        "model_type": architecture,
        "hidden_size": hidden,
        "num_hidden_layers": int(_number(header, "block_count")),
        "intermediate_size": int(_number(header, "feed_forward_length")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(_number(header, "attention.head_count_kv", heads)),
        "head_dim": width,
        "rms_norm_eps": float(_number(header, "attention.layer_norm_rms_epsilon")),
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": int(_number(header, "context_length")),
        "rope_theta": float(_number(header, "rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(header),
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": architecture == "llama" and "blk.0.attn_q.bias" in names,
    }


def _number(header: GgufHeader, key: str, default: float | None = None) -> float:
    value = header.at(key)
    if value is None and f"{header.architecture}.{key}" not in header.metadata and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        what = "is not one number" if value is not None else "is missing"
        raise BrokenWeights(f"`{header.path}` cannot be used: its `{header.architecture}.{key}` {what}")
    return value


def _rope_scaling(header: GgufHeader) -> dict[str, Value] | None:
    kind = header.at("rope.scaling.type")
    if kind in (None, "none"):
        legacy = _number(header, "rope.scale_linear", 1.0)
        return None if legacy == 1.0 else {"rope_type": "linear", "factor": legacy}
    if kind not in ("linear", "yarn"):
        raise UnknownFormat(f"`{header.path}` scales its positions by `{kind}`, which is not read from GGUF")
    scaling: dict[str, Value] = {"rope_type": str(kind), "factor": _number(header, "rope.scaling.factor")}
    if kind == "yarn":
        original = _number(header, "rope.scaling.original_context_length", _number(header, "context_length"))
        scaling["original_max_position_embeddings"] = int(original)
    return scaling
