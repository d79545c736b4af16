"""A config alone -> LoadedModel with random weights, for measuring speed where no checkpoint is at hand.

The network is built in memory, in the number format asked for, and settled as a loaded one is: packed and fused
where the native kernels are. Its answers mean nothing; its tokenizer is a stand-in in which a byte is a token.

Thread: worker
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lattice_cli.errors import UnknownFormat, UsageError
from lattice_cli.kernels import blas, native_choice, platform
from lattice_cli.model.card import ModelCard, ModelFormat
from lattice_cli.model.load import LoadedModel, choose_window, nbytes_of, settle
from lattice_cli.settings import Home

LETTERS = b"etaoinshrdlucmfwypvbgkjqxz"


@dataclass(frozen=True, slots=True)
class RandomModel:
    """What to make up: `config` is a config.json. With `dtype` the weights stay dense in it ("float32", "bfloat16",
    "float16"); else they have `bits` in groups of `group`.
    """

    config: Path
    bits: int = 4
    group: int = 64
    dtype: str | None = None
    seed: int = 0

    @property
    def quantization(self) -> str:
        return self.dtype or f"{self.bits}-bit group {self.group}"


class StandInTokenizer:
    """Ids 0-255 are bytes, those above are words of letters, all different; the last id is the end and has no bytes."""

    def __init__(self, vocabulary_size: int) -> None:
        self._size = vocabulary_size

    @property
    def vocabulary_size(self) -> int:
        return self._size

    def encode(self, text: str) -> list[int]:
        """One id a UTF-8 byte."""
        return list(text.encode("utf-8", "replace"))

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        if token_id >= self._size - 1:
            return b""
        word, rest = bytearray(b" " if token_id % 2 else b""), token_id
        while rest:
            rest, letter = divmod(rest, len(LETTERS))
            word.append(LETTERS[letter])
        return bytes(word)


def make_up(model: RandomModel, home: Home, *, context_tokens: int | None = None) -> LoadedModel:
    """The network, fully evaluated. Cost: seconds a billion weights.

    Raises: UsageError for what cannot be read or quantized so, UnknownFormat, BrokenWeights, InstallError.
    """
    products = blas.preload(home)
    platform.check_platform()
    native = native_choice.choose(home)
    fields = read_config(model.config)
    network = random_network(model, fields)
    notes = settle(network, model.config, native, gguf=False)
    if products.slow:
        notes += (f"prompts are read slowly because {products.reason}; see `lattice doctor`",)
    text = {**fields, **fields.get("text_config", {})}
    size = text.get("vocab_size")
    if not isinstance(size, int) or size < 257:
        raise UnknownFormat(f"`{model.config}` names no vocabulary of at least 257 tokens")
    nbytes = nbytes_of(network)
    trained = text.get("max_position_embeddings")
    made = ModelFormat("mlx", str(fields.get("model_type")), model.quantization, trained, nbytes)
    card = ModelCard(
        served_id=f"random:{model.config.stem}",
        format=made,
        tokenizer=StandInTokenizer(size),
        context_tokens=choose_window(made, context_tokens),
        end_ids=frozenset({size - 1}),
        notes=(f"random weights, {model.quantization}: what it says means nothing", *notes),
    )
    return LoadedModel(network, card, nbytes)


def read_config(path: Path) -> dict[str, Any]:
    """A config.json. Raises: UsageError."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"`{path}` is no config that can be read: {error}", param="--random-weights") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise UsageError(f"`{path}` names no `model_type`", param="--random-weights", hint="give a model's config.json")
    return fields


def random_network(model: RandomModel, fields: dict[str, Any]) -> Any:
    """mlx-lm's network as it would be loaded, its weights not evaluated. Raises: UsageError, UnknownFormat."""
    import mlx.core as mx
    from mlx.nn.layers.quantized import quantize

    from lattice_cli.model.network import empty_network

    mx.random.seed(model.seed)
    network = empty_network(model.config, fields)
    network.set_dtype(getattr(mx, model.dtype) if model.dtype else mx.bfloat16)
    if model.dtype is None:
        try:
            quantize(network, class_predicate=lambda _, module: _fits(module, model.group) and _layout(model))
        except ValueError as error:
            raise UsageError(f"these weights cannot be quantized so: {error}", param="--bits") from error
    network.eval()
    return network


def _fits(module: Any, group: int) -> bool:
    return hasattr(module, "to_quantized") and module.weight.shape[-1] % group == 0


def _layout(model: RandomModel) -> dict[str, int]:
    return {"bits": model.bits, "group_size": model.group}
