"""Tiny random models for tests: a folder as the Hugging Face hub would hold it, written in milliseconds.

Knows shapes and file layouts; imports no mlx. One byte is one token: the vocabulary is the 256 bytes
and five control tokens, so every text round-trips and every split point can be met.

Thread: any
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Architecture = Literal["llama", "qwen2", "qwen3", "qwen3_5"]

HIDDEN, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 4, 2, 16
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
VOCABULARY = 256 + len(CONTROL_TOKENS)
END_OF_TEXT, IM_START, IM_END, THINK, END_THINK = range(256, VOCABULARY)
CONTEXT_TOKENS = 512
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Weights = dict[str, "np.ndarray[Any, Any]"]


def write_tiny_folder(path: Path, architecture: Architecture = "llama", seed: int = 0) -> Path:
    """Write a 2-layer random model with tokenizer and ChatML template into `path`; returns `path`.

    Hidden 64, 261 tokens, window 512, float32. llama has a head of its own, the others a tied one.
    qwen3_5 lies as its checkpoints do: nested config, `model.language_model.` names, one recurrent
    and one full-attention layer, and a vision and an MTP tensor that text use must skip.
    """
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / "config.json", tiny_config(architecture))
    write_json(path / "generation_config.json", {"eos_token_id": [IM_END, END_OF_TEXT]})
    tiny_tokenizer().save(str(path / "tokenizer.json"))
    write_json(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": CHAT_TEMPLATE,
            "eos_token": "<|im_end|>",
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
        },
    )
    save_file(tiny_weights(architecture, seed), str(path / "model.safetensors"), metadata={"format": "pt"})
    return path


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE without merges; control tokens are ids 256 to 260, the thinking ones not special."""
    alphabet = byte_alphabet()
    tokenizer = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    for text in CONTROL_TOKENS:
        special = not text.endswith("think>")
        tokenizer.add_tokens([AddedToken(text, special=special, normalized=False)])
    return tokenizer


def byte_alphabet() -> list[str]:
    """GPT-2's printable letter for each byte, by byte value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def tiny_config(architecture: Architecture) -> dict[str, Any]:
    """config.json of a tiny model."""
    text = {
        "model_type": architecture,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT_TOKENS,
        "rope_theta": 10000.0,
        "tie_word_embeddings": architecture != "llama",
        "eos_token_id": END_OF_TEXT,
    }
    if architecture != "qwen3_5":
        return {**text, "torch_dtype": "float32"}
    text |= {
        "model_type": "qwen3_5_text",
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [1, 1, 0],
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
        },
    }
    return {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": True}


def tiny_weights(architecture: Architecture, seed: int = 0) -> Weights:
    """Random float32 weights by checkpoint name, wide enough that greedy choices are clear."""
    rng = np.random.default_rng(seed)
    prefix = "model.language_model." if architecture == "qwen3_5" else "model."
    zero_centred = architecture == "qwen3_5"

    def dense(out: int, width: int, gain: float = 1.5) -> np.ndarray[Any, Any]:
        return (rng.standard_normal((out, width)) * gain / width**0.5).astype(np.float32)  # (out, width)

    def norm(width: int) -> np.ndarray[Any, Any]:
        weight = 0.1 * rng.standard_normal(width) + (0.0 if zero_centred else 1.0)
        return weight.astype(np.float32)  # (width,)

    weights: Weights = {
        f"{prefix}embed_tokens.weight": dense(VOCABULARY, HIDDEN, gain=0.75),
        f"{prefix}norm.weight": norm(HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"{prefix}layers.{layer}."
        weights |= {f"{at}input_layernorm.weight": norm(HIDDEN), f"{at}post_attention_layernorm.weight": norm(HIDDEN)}
        weights |= {
            f"{at}mlp.gate_proj.weight": dense(FEED_FORWARD, HIDDEN),
            f"{at}mlp.up_proj.weight": dense(FEED_FORWARD, HIDDEN),
            f"{at}mlp.down_proj.weight": dense(HIDDEN, FEED_FORWARD),
        }
        if architecture == "qwen3_5" and layer % 2 == 0:
            weights |= _recurrent(rng, dense, f"{at}linear_attn.")
            continue
        queries = HEADS * HEAD_DIM * (2 if architecture == "qwen3_5" else 1)  # qwen3_5: query and gate
        weights |= {
            f"{at}self_attn.q_proj.weight": dense(queries, HIDDEN),
            f"{at}self_attn.k_proj.weight": dense(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}self_attn.v_proj.weight": dense(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}self_attn.o_proj.weight": dense(HIDDEN, HEADS * HEAD_DIM),
        }
        if architecture == "qwen2":
            for name, width in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
                weights[f"{at}self_attn.{name}_proj.bias"] = dense(width, 1, gain=0.1)[:, 0]  # (width,)
        if architecture in ("qwen3", "qwen3_5"):
            weights |= {f"{at}self_attn.q_norm.weight": norm(HEAD_DIM), f"{at}self_attn.k_norm.weight": norm(HEAD_DIM)}
    if architecture == "llama":
        weights["lm_head.weight"] = dense(VOCABULARY, HIDDEN)
    if architecture == "qwen3_5":
        weights["model.visual.patch_embed.proj.weight"] = dense(8, 8)
        weights["mtp.fc.weight"] = dense(HIDDEN, 2 * HIDDEN)
    return weights


def _recurrent(rng: np.random.Generator, dense: Any, at: str) -> Weights:
    """A Gated DeltaNet layer: 2 key heads, 4 value heads, 16 wide, convolution over 4 positions."""
    keys, values = 2 * 16, 4 * 16
    return {
        f"{at}in_proj_qkv.weight": dense(2 * keys + values, HIDDEN),
        f"{at}in_proj_z.weight": dense(values, HIDDEN),
        f"{at}in_proj_b.weight": dense(4, HIDDEN),
        f"{at}in_proj_a.weight": dense(4, HIDDEN),
        f"{at}conv1d.weight": dense(2 * keys + values, 4)[:, None, :],  # (channels, 1, positions)
        f"{at}dt_bias": np.ones(4, np.float32),
        f"{at}A_log": np.log(rng.uniform(1, 16, 4)).astype(np.float32),
        f"{at}norm.weight": np.ones(16, np.float32),
        f"{at}out_proj.weight": dense(HIDDEN, values),
    }
