"""What lies beside the weights of a model folder: config, tokenizer, template, generation config.

Copied from a folder as they are, or written from what a GGUF file says. Knows file names; knows no weights.

Thread: any
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lattice_cli.model.folder import Fields
from lattice_cli.model.gguf_header import GgufHeader
from lattice_cli.model.gguf_tokenizer import build_tokenizer, gguf_end_ids, gguf_template, gguf_token

_COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE*",
    "NOTICE*",
)
_QUANTIZATION = ("quantization", "quantization_config")


def copy_side_files(source: Path, folder: Path) -> None:
    """Copy what a folder has of tokenizer, template, generation config and licence."""
    for pattern in _COPIED:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)


def write_gguf_side_files(header: GgufHeader, config: Fields, folder: Path) -> None:
    """Write a GGUF file's tokenizer, template and ends, as transformers and mlx-lm read them.

    Raises: UnknownFormat for a tokenizer that cannot be rebuilt, BrokenWeights.
    """
    build_tokenizer(header).save(folder / "tokenizer.json")
    texts = {
        "chat_template": gguf_template(header.metadata),
        "bos_token": gguf_token(header, "bos"),
        "eos_token": gguf_token(header, "eos"),
    }
    write_fields(folder / "generation_config.json", {"eos_token_id": sorted(gguf_end_ids(header.metadata))})
    write_fields(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            **{name: text for name, text in texts.items() if text},
        },
    )


def write_fields(file: Path, fields: Fields) -> None:
    """Write a JSON object."""
    file.write_text(json.dumps(dict(fields), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def without_quantization(config: Fields) -> dict[str, Any]:
    """A config as it was before its weights were quantized."""
    nested = {name: without_quantization(value) for name, value in config.items() if name == "text_config"}
    return {name: value for name, value in config.items() if name not in _QUANTIZATION} | nested


def with_quantization(config: Fields, common: Mapping[str, Any], layouts: Mapping[str, Mapping[str, Any]]) -> Fields:
    """mlx-lm's config of packed weights: one layout for all, and each module that differs by its path."""
    others = {path: dict(layout) for path, layout in sorted(layouts.items()) if layout != common}
    quantization = {**common, "mode": "affine", **others}
    return {**config, "quantization": quantization, "quantization_config": quantization}
