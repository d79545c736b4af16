"""A lattice `.q4` folder -> a network whose weights keep every bit.

A block of the format is mlx's affine 4-bit group of 32: its nibbles lie in mlx's order, its f16 scale and
minimum are mlx's `scales` and `biases`. Files are memory-mapped and only taken apart, nothing is converted.
Knows blocks; knows no architecture.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lattice_cli.errors import BrokenWeights
from lattice_cli.model.folder import Fields
from lattice_cli.model.gguf_tensors import Bytes, half_at
from lattice_cli.model.network import build_checkpoint
from lattice_cli.model.q4_header import BLOCK_BYTES, BLOCK_WEIGHTS, Q4Tensor, read_index
from lattice_cli.model.unused import is_draft, is_vision

if TYPE_CHECKING:
    import mlx.core as mx

LAYOUT = {"group_size": BLOCK_WEIGHTS, "bits": 4}


def load_q4(folder: Path, config: Fields, *, float32: bool = False) -> Any:
    """The network of a `.q4` folder; packed layers stay packed. Cost: about a second for each GB.

    Vision and multi-token prediction are left out, as from a checkpoint. `float32` says that the network
    will compute in float32; otherwise what must be expanded is in half precision.
    Raises: UnknownFormat, BrokenWeights.
    """
    return _built(folder, config, partial(read_q4_tensor, float32=float32), float32=float32)


def outline_q4(folder: Path, config: Fields) -> Any:
    """`load_q4` without reading: every number is 0 and not evaluated; names, shapes and formats are the same."""
    return _built(folder, config, outline_q4_tensor, float32=False)


def _built(folder: Path, config: Fields, read: Callable[[Q4Tensor], dict[str, mx.array]], *, float32: bool) -> Any:
    weights: dict[str, mx.array] = {}
    for tensor in read_index(folder):
        if not is_vision(tensor.name) and not is_draft(tensor.name):
            weights |= read(tensor)
    return build_checkpoint(folder, config, weights, LAYOUT, float32=float32)


def read_q4_tensor(tensor: Q4Tensor, *, float32: bool) -> dict[str, mx.array]:
    """A tensor by its name; a packed matrix as `weight`, `scales` and `biases` beside each other.

    A packed tensor that mlx cannot hold so (rows that are no multiple of 32 wide, or not two dimensions) is
    expanded to float32, or to float16 without `float32`. Raises: BrokenWeights.
    """
    import mlx.core as mx

    raw = _mapped(tensor)
    if not tensor.packed:
        return {tensor.name: mx.array(raw.view(np.float16).reshape(tensor.shape))}
    blocks = raw.reshape(-1, BLOCK_BYTES)
    owner = tensor.name.rpartition(".")[0]
    if not _held_packed(tensor):
        dense = expand_blocks(blocks, prod(tensor.shape)).reshape(tensor.shape)
        return {tensor.name: mx.array(dense if float32 else dense.astype(np.float16))}
    rows = tensor.shape[0]
    groups = blocks.reshape(rows, -1, BLOCK_BYTES)  # (rows, groups, bytes)
    codes = np.ascontiguousarray(groups[..., 4:]).reshape(rows, -1)  # (rows, width / 2)
    return {
        tensor.name: mx.array(codes.view(np.uint32)),  # (rows, width / 8)
        f"{owner}.scales": mx.array(half_at(groups, 0)),  # (rows, groups)
        f"{owner}.biases": mx.array(half_at(groups, 2)),
    }


def outline_q4_tensor(tensor: Q4Tensor) -> dict[str, mx.array]:
    """What `read_q4_tensor` gives without `float32`, in names, shapes and formats."""
    import mlx.core as mx

    if not _held_packed(tensor):
        return {tensor.name: mx.zeros(tensor.shape, mx.float16)}
    owner, (rows, width) = tensor.name.rpartition(".")[0], tensor.shape
    groups = mx.zeros((rows, width // BLOCK_WEIGHTS), mx.float16)
    return {
        tensor.name: mx.zeros((rows, width // 8), mx.uint32),
        f"{owner}.scales": groups,
        f"{owner}.biases": groups,
    }


def _held_packed(tensor: Q4Tensor) -> bool:
    """Whether mlx can hold a tensor's blocks as they are."""
    matrix = len(tensor.shape) == 2 and tensor.shape[1] % BLOCK_WEIGHTS == 0
    return tensor.packed and matrix and tensor.name.rpartition(".")[2] == "weight"


def expand_blocks(blocks: Bytes, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The first `count` weights of blocks (blocks, 20), each `nibble * scale + minimum` in float32."""
    scale = half_at(blocks, 0).astype(np.float32)[:, None]
    minimum = half_at(blocks, 2).astype(np.float32)[:, None]
    codes = np.stack([blocks[:, 4:] & 0xF, blocks[:, 4:] >> 4], axis=-1)  # (blocks, 16, 2): low nibble first
    dense: np.ndarray[Any, np.dtype[np.float32]] = codes.reshape(-1, BLOCK_WEIGHTS) * scale + minimum
    return dense.reshape(-1)[:count]


def _mapped(tensor: Q4Tensor) -> Bytes:
    try:
        return np.memmap(tensor.path, np.uint8, "r", tensor.offset, (tensor.payload_bytes,))
    except (OSError, ValueError) as error:  # ValueError: cut short since its header was read
        raise BrokenWeights(f"`{tensor.path}` cannot be read: {error}") from error
