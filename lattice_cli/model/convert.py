"""A model in any format we read -> a folder in 4 or 8 bits: `.q4` for the Rust engine, or MLX.

Knows which reader gives which names; knows no command and no place on disk.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lattice_cli.model import dense, mlx_writer, q4_writer, side_files
from lattice_cli.model.card import ModelFormat, ModelSource
from lattice_cli.model.dense import Weight
from lattice_cli.model.folder import Fields, read_config
from lattice_cli.model.gguf import gguf_config
from lattice_cli.model.gguf_header import GgufHeader, read_header
from lattice_cli.model.network import empty_network, known_config, load_folder
from lattice_cli.model.precision import half_format
from lattice_cli.model.q4 import load_q4

if TYPE_CHECKING:
    import mlx.core as mx

Target = Literal["q4", "mlx"]
Advance = Callable[[int, int | None], None]

_CHUNK_WEIGHTS = 1 << 22  # expanded at once: 16 MB in float32


@dataclass(frozen=True, slots=True)
class Packing:
    """What to make: `bits` and `group_size` are 4 and 32 for `q4`."""

    target: Target
    bits: int
    group_size: int


@dataclass(frozen=True, slots=True)
class _Opened:
    """A source: `half` is the format its expanded weights are written in, None for their own."""

    path: Path
    config: Fields
    weights: list[Weight]
    half: Any | None
    header: GgufHeader | None = None


def convert(source: ModelSource, found: ModelFormat, packing: Packing, folder: Path, advance: Advance) -> None:
    """Write `source` into the empty `folder`, tensor by tensor. Cost: some 20 s for 1e9 weights.

    `advance` hears how many bytes of how many have been read.
    Raises: ModelError for a source that cannot be read, OSError where the folder cannot be written.
    """
    opened = _open(source.path, found, packing.target)
    total, read = dense.total_bytes(opened.weights), 0

    def done(nbytes: int) -> None:
        nonlocal read
        read += nbytes
        advance(read, total)

    advance(0, total)
    if opened.header is not None:
        side_files.write_gguf_side_files(opened.header, opened.config, folder)
    else:
        side_files.copy_side_files(source.path, folder)
    if packing.target == "q4":
        _write_q4(opened, folder, done)
    else:
        _write_mlx(opened, packing, folder, done)


def _open(path: Path, found: ModelFormat, target: Target) -> _Opened:
    import mlx.core as mx

    if found.kind == "gguf":
        header = read_header(path)
        config = gguf_config(header)
        weights = dense.gguf_weights(header, config)
        end = header.metadata.get("tokenizer.ggml.eos_token_id")
        return _Opened(path, config | ({} if end is None else {"eos_token_id": end}), weights, mx.float16, header)
    config, half = dict(read_config(path)), None
    if target == "q4" and found.quantization == "none":
        weights = dense.checkpoint_weights(path)
    else:
        network = (load_q4 if found.kind == "q4" else load_folder)(path, config)
        half = half_format(network) if found.quantization != "none" else None
        weights = dense.network_weights(path, network)
    if target == "q4":
        weights = [checkpoint_form(weight) for weight in weights]
    return _Opened(path, side_files.without_quantization(config), weights, half)


# Folders of `.q4` files.


def _write_q4(opened: _Opened, folder: Path, done: Callable[[int], None]) -> None:
    side_files.write_fields(folder / "config.json", opened.config)
    entries = []
    for weight in dense.one_by_one(opened.weights):
        entries.append(q4_writer.write_tensor(folder, weight.name, weight.shape, _chunks(weight)))
        done(weight.nbytes)
    q4_writer.write_index(folder, entries)


def _chunks(weight: Weight) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
    """The weight in row-major order, flat and in float32."""
    import mlx.core as mx

    flat = weight.load().reshape(-1)
    for start in range(0, flat.size, _CHUNK_WEIGHTS):
        yield np.array(flat[start : start + _CHUNK_WEIGHTS].astype(mx.float32))
    del flat
    mx.clear_cache()


_SHIFTED = ("_layernorm.weight", "model.norm.weight", ".q_norm.weight", ".k_norm.weight")


def checkpoint_form(weight: Weight) -> Weight:
    """A weight of mlx-lm's Qwen3.5 as its checkpoints have it; any other weight as it is.

    Undoes `sanitize` of mlx_lm/models/qwen3_5.py: names, norms round 0 instead of 1, the convolution's axes.
    """
    if not weight.name.startswith("language_model."):
        return weight
    name = weight.name.removeprefix("language_model.")
    if name.startswith("model."):
        name = f"model.language_model.{name.removeprefix('model.')}"
    if name.endswith("conv1d.weight"):
        channels, positions, inputs = weight.shape
        return replace(
            weight, name=name, shape=(channels, inputs, positions), read=lambda: weight.read().moveaxis(1, 2)
        )
    if name.endswith(_SHIFTED):
        return replace(weight, name=name, read=lambda: _shifted(weight.read()))
    return replace(weight, name=name)


def _shifted(norm: mx.array) -> mx.array:
    import mlx.core as mx

    return norm.astype(mx.float32) - 1.0


# MLX folders.


def _write_mlx(opened: _Opened, packing: Packing, folder: Path, done: Callable[[int], None]) -> None:
    common = {"group_size": packing.group_size, "bits": packing.bits}
    layouts = mlx_writer.packed_modules(empty_network(opened.path, opened.config), common)
    config = side_files.with_quantization(known_config(opened.config), common, layouts)
    side_files.write_fields(folder / "config.json", config)
    mlx_writer.write_shards(folder, opened.weights, layouts, opened.half, done)
