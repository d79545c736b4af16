"""Weights -> the files of a lattice `.q4` folder, byte for byte what the Rust engine's `quantize_q4` writes.

The arithmetic of a block is that program's, in float32 and in its order:

- scale is (max - min) / 15, or 1 for a block of equal weights, and is NOT rounded before use;
- a code is (weight - min) * (1 / scale), rounded to nearest with halves away from zero, held in 0..15;
- only then are scale and minimum stored as f16, rounded to nearest even;
- blocks run over the whole tensor in row-major order; a last block that is not full is padded with zeros,
  which do not count for its minimum and maximum.

Choosing codes by the scale as stored would be slightly closer to the weights, and other bytes. Knows
names and bytes; knows no model.

Thread: any
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from lattice_cli.errors import BrokenWeights
from lattice_cli.model.q4_header import BLOCK_BYTES, BLOCK_WEIGHTS, INDEX, MAGIC, VERSION

Floats = np.ndarray[Any, np.dtype[np.float32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_EXPERTS = (".experts.gate_up_proj", ".experts.down_proj")  # stacks of matrices, without `.weight`
_ALWAYS = re.compile(r"(_proj(_a|_b|_qkv|_z)?|lm_head|embed_tokens)\.weight\Z")
_NEVER = re.compile(r"norm\.weight|norm_|conv1d\.weight\Z")


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor's line in the index; the fields' order is the file's."""

    name: str
    file: str
    quantized: bool
    shape: tuple[int, ...]
    numel: int


def is_quantized(name: str) -> bool:
    """Whether the format has a tensor in 4 bits, by its name in the checkpoint; else it is f16.

    Projections, embedding, head and stacks of experts are, norms and convolutions are not, nor is what
    is no `.weight` (biases, A_log, dt_bias); any other `.weight` is, a vision tower's `norm1` too.
    """
    if name.endswith(_EXPERTS):
        return True
    if not name.endswith(".weight"):
        return False
    return _ALWAYS.search(name) is not None or _NEVER.search(name) is None


def file_name(name: str) -> str:
    """The file of a tensor: every character but letters, digits and `-` becomes `_`."""
    stem = "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in name)
    return stem + (".q4" if is_quantized(name) else ".f16")


def write_tensor(folder: Path, name: str, shape: tuple[int, ...], chunks: Iterable[Floats]) -> Entry:
    """Write one tensor. `chunks` are its weights in row-major order, flat, each but the last a multiple of
    32 long, so that memory is a chunk's.

    Raises: BrokenWeights for a weight that is not finite or too large for f16.
    """
    entry = Entry(name, file_name(name), is_quantized(name), shape, prod(shape))
    suffix = Path(entry.file).suffix
    with (folder / entry.file).open("xb") as file:
        file.write(struct.pack("<4sII", MAGIC[suffix], VERSION[suffix], len(shape)))
        file.write(struct.pack(f"<{len(shape) + 1}Q", *shape, entry.numel))
        for chunk in chunks:
            file.write((encode(chunk, name) if entry.quantized else _halves(chunk, name)).tobytes())
    return entry


def write_index(folder: Path, entries: Iterable[Entry]) -> None:
    """Write the index, as serde_json prints it."""
    text = json.dumps([asdict(entry) for entry in entries], indent=2, ensure_ascii=False)
    (folder / INDEX).write_text(text, encoding="utf-8")


def encode(weights: Floats, name: str) -> Bytes:
    """Blocks (blocks, 20) of weights (count,) in float32. `name` is named in errors.

    Cost: a second for 50 M weights. Raises: BrokenWeights.
    """
    count = weights.size
    blocks = np.zeros((-(-count // BLOCK_WEIGHTS), BLOCK_WEIGHTS), np.float32)
    blocks.reshape(-1)[:count] = weights
    low, high = blocks.min(axis=1), blocks.max(axis=1)
    tail = weights[count - count % BLOCK_WEIGHTS :]
    if tail.size:
        low[-1], high[-1] = tail.min(), tail.max()
    with np.errstate(all="ignore"):  # what overflows here is refused by `_halves`
        span = high - low
        scale = np.where(span == 0, np.float32(1), span / np.float32(15))
        steps = (blocks - low[:, None]) * (np.float32(1) / scale)[:, None]  # (blocks, 32)
        codes = np.floor(steps)
        codes += steps - codes >= np.float32(0.5)
        codes = np.clip(np.nan_to_num(codes, nan=0.0, posinf=15.0), 0, 15).astype(np.uint8)
    packed = np.empty((len(blocks), BLOCK_BYTES), np.uint8)
    packed[:, 0:2] = _halves(scale, name)
    packed[:, 2:4] = _halves(low, name)
    packed[:, 4:] = codes[:, 0::2] | codes[:, 1::2] << 4
    return packed


def _halves(weights: Floats, name: str) -> Bytes:
    """The bytes (count, 2) of weights in f16, little endian."""
    with np.errstate(over="ignore"):
        halves = weights.astype("<f2")
    if not np.isfinite(halves).all():
        what = "is too large for half precision" if np.isfinite(weights).all() else "is not a finite number"
        raise BrokenWeights(f"a weight of `{name}` {what}, and cannot be quantized")
    return halves.view(np.uint8).reshape(-1, 2)
