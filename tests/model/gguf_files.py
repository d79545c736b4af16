"""Tiny GGUF files and the same weights as a float32 folder, for comparing one reader with another.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

from tests.tiny import CONTROL_TOKENS, byte_alphabet, tiny_tokenizer, write_json

Architecture = Literal["llama", "qwen2", "qwen3"]
Array = np.ndarray[Any, Any]

# K-quants come in blocks of 256 weights, so these are wider than the models of tests/tiny.py.
HIDDEN, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, WIDTH, WINDOW = 256, 512, 2, 4, 2, 64, 512

MERGES = ("Ġ a", "t h")
TOKENS = (*byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES), *CONTROL_TOKENS)
VOCABULARY = len(TOKENS)

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@cache
def weights_of(architecture: Architecture, seed: int = 0, *, attention_bias: bool = False) -> Mapping[str, Array]:
    """Random weights under their checkpoint names; qwen2 has biases, qwen3 norms for heads, llama its own head. Nobody
    may change them: they are made once.
    """
    rng = np.random.default_rng(seed)

    def dense(out: int, width: int) -> Array:
        return (rng.standard_normal((out, width)) * 1.5 / width**0.5).astype(np.float32)  # (out, width)

    def vector(width: int, middle: float) -> Array:
        return (middle + 0.1 * rng.standard_normal(width)).astype(np.float32)  # (width,)

    shapes = {
        "self_attn.q_proj": (HEADS * WIDTH, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * WIDTH, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * WIDTH, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * WIDTH),
        "mlp.gate_proj": (FEED_FORWARD, HIDDEN),
        "mlp.up_proj": (FEED_FORWARD, HIDDEN),
        "mlp.down_proj": (HIDDEN, FEED_FORWARD),
    }
    weights = {"model.embed_tokens.weight": dense(VOCABULARY, HIDDEN), "model.norm.weight": vector(HIDDEN, 1.0)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        weights |= {f"{at}{name}.weight": dense(*shape) for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}{name}.weight"] = vector(HIDDEN, 1.0)
        if architecture == "qwen2" or attention_bias:
            for name in ("q", "k", "v"):
                rows = shapes[f"self_attn.{name}_proj"][0]
                weights[f"{at}self_attn.{name}_proj.bias"] = vector(rows, 0.0)
        if architecture == "qwen3":
            weights |= {f"{at}self_attn.{name}_norm.weight": vector(WIDTH, 1.0) for name in ("q", "k")}
    if architecture == "llama":
        weights["lm_head.weight"] = dense(VOCABULARY, HIDDEN)
    for weight in weights.values():
        weight.setflags(write=False)
    return MappingProxyType(weights)


def pack(weight: Array, kind: str, seed: int) -> Array:
    """The bytes of a matrix in a ggml type. K-quants, which the gguf package cannot make, are random blocks."""
    qtype = GGMLQuantizationType[kind]
    if not kind.endswith("_K"):
        packed: Array = quantize(weight, qtype)
        return packed
    rng = np.random.default_rng(seed)
    block, nbytes = GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, (weight.shape[0], weight.shape[1] // block, nbytes), dtype=np.uint8)
    spread = {"Q2_K": 12, "Q3_K": 40, "Q4_K": 200, "Q5_K": 400, "Q6_K": 1400}[kind]  # of a block with scale 1
    scale = np.float16(1.5 / spread / weight.shape[1] ** 0.5)
    at = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[kind]
    for offset in at:
        blocks[..., offset : offset + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks.reshape(weight.shape[0], -1)  # (rows, bytes)


def interleave(weight: Array, heads: int) -> Array:
    """llama.cpp's convert_hf_to_gguf.py, LlamaModel.permute."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def deinterleave(weight: Array, heads: int) -> Array:
    """Its inverse, found by following where each row went."""
    went = interleave(np.arange(weight.shape[0])[:, None], heads)[:, 0]
    return weight[np.argsort(went)]


def gguf_name(name: str) -> str:
    path, _, kind = name.rpartition(".")
    if path.startswith("model.layers."):
        _, _, layer, module = path.split(".", 3)
        return f"blk.{layer}.{_NAMES[module]}.{kind}"
    return f"{_NAMES[path]}.{kind}"


def write_gguf(
    file: Path,
    architecture: Architecture,
    kind: str,
    *,
    seed: int = 0,
    attention_bias: bool = False,
    metadata: dict[str, Any] | None = None,
    rope_factors: Array | None = None,
    pre: str = "gpt-2",
    twin: Path | None = None,
) -> Path:
    """Write a random model with its matrices as `kind`; into `twin` the same weights, expanded to float32."""
    writer = GGUFWriter(file, architecture)
    writer.add_context_length(WINDOW)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    for key, value in (metadata or {}).items():
        {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)](key, value)
    _add_tokenizer(writer, pre)
    expanded: dict[str, Array] = {}
    for number, (name, weight) in enumerate(weights_of(architecture, seed, attention_bias=attention_bias).items()):
        heads = {"q": HEADS, "k": KV_HEADS}.get(name.rpartition("self_attn.")[2].partition("_proj")[0])
        turned = architecture == "llama" and heads is not None
        laid = interleave(weight, heads) if turned and heads else weight
        if weight.ndim == 1:
            writer.add_tensor(gguf_name(name), laid)
            expanded[name] = weight
            continue
        packed = pack(laid, kind, seed * 1000 + number)
        writer.add_tensor(gguf_name(name), packed, raw_dtype=GGMLQuantizationType[kind])
        dense = dequantize(packed, GGMLQuantizationType[kind]).astype(np.float32)
        expanded[name] = deinterleave(dense, heads) if turned and heads else dense
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if twin is not None:
        write_twin(twin, architecture, expanded)
    return file


def write_twin(folder: Path, architecture: Architecture, weights: dict[str, Array], **config: Any) -> Path:
    """A float32 safetensors folder for mlx-lm's own loader."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / "config.json",
        {
            "model_type": architecture,
            "hidden_size": HIDDEN,
            "intermediate_size": FEED_FORWARD,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": WIDTH,
            "rms_norm_eps": 1e-5,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": WINDOW,
            "rope_theta": 10000.0,
            "tie_word_embeddings": architecture != "llama",
            **config,
        },
    )
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    save_file({name: np.ascontiguousarray(weight) for name, weight in weights.items()}, folder / "model.safetensors")
    return folder


def change_config(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, **changes})
    return folder


def _add_tokenizer(writer: GGUFWriter, pre: str) -> None:
    """The bytes, two merges, and control tokens (type 3), the thinking ones user-defined (type 4)."""
    kinds = {token: 4 if token.endswith("think>") else 3 for token in CONTROL_TOKENS}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(TOKENS))
    writer.add_token_types([kinds.get(token, 1) for token in TOKENS])
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(TOKENS.index("<|im_start|>"))
    writer.add_eos_token_id(TOKENS.index("<|im_end|>"))
    writer.add_chat_template("{{ messages[0]['content'] }}")
