"""A lattice `.q4` folder's index and the headers of its files. No weights are read.

The folder is what the Rust engine's `quantize_q4` and `quantize_quarot` write: a file for each tensor and
`quantize_index.json`, an array of entries with `name` and `file`, or an object that has it as `tensors`.
Little endian:

    .q4   `KHQ4`, version u32 = 2, ndim u32, shape u64 x ndim, count u64, then blocks of 20 bytes for 32
          weights in row-major order: f16 scale, f16 minimum, 16 bytes of nibbles, the low one first
    .f16  `KHF1`, version u32 = 1, ndim u32, shape u64 x ndim, count u64, then f16 values

Files that the index does not name (`merged_qkvz_*.q4`, which that engine makes on its first load) are
left alone.

Thread: any
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

from lattice_cli.errors import BrokenWeights, UnknownFormat
from lattice_cli.model.folder import Fields, read_config, read_json

INDEX = "quantize_index.json"
BLOCK_WEIGHTS, BLOCK_BYTES = 32, 20
MAGIC = {".q4": b"KHQ4", ".f16": b"KHF1"}
VERSION = {".q4": 2, ".f16": 1}
_MAX_DIMENSIONS = 8
_AGAIN = "quantize the model again with `lattice quantize`"


@dataclass(frozen=True, slots=True)
class Q4Tensor:
    """One tensor: packed 4-bit blocks or f16 values, from `offset` on in a file of `nbytes`."""

    name: str
    path: Path
    shape: tuple[int, ...]
    packed: bool
    offset: int
    nbytes: int

    @property
    def payload_bytes(self) -> int:
        """How long the blocks or values are."""
        return payload_bytes(prod(self.shape), packed=self.packed)


def payload_bytes(count: int, *, packed: bool) -> int:
    """The bytes that `count` weights take."""
    return -(-count // BLOCK_WEIGHTS) * BLOCK_BYTES if packed else 2 * count


def holds_q4(folder: Path) -> bool:
    """Whether a folder is meant as a `.q4` folder."""
    return (folder / INDEX).is_file() or any(folder.glob("*.q4"))


def read_q4_config(folder: Path) -> Fields:
    """config.json, which older versions of the Rust engine's tools do not write.

    Raises: BrokenWeights.
    """
    return read_config(folder, hint="copy config.json and the tokenizer from the model this one was made of")


def read_index(folder: Path) -> tuple[Q4Tensor, ...]:
    """Every tensor that the index names, each file's header read. Cost: 0.1 ms a file.

    Raises: UnknownFormat for a version we do not read, BrokenWeights for a missing, cut or damaged file.
    """
    path = folder / INDEX
    entries = read_json(path, hint=_AGAIN)
    if isinstance(entries, dict):
        entries = entries.get("tensors")
    if not isinstance(entries, list) or not entries:
        raise BrokenWeights(f"`{path}` lists no tensors", hint=_AGAIN)
    return tuple(_read_header(path, name, folder / file) for name, file in _names(path, entries))


def _names(path: Path, entries: list[object]) -> Iterator[tuple[str, str]]:
    """(tensor, file) of each entry; a file lies in the folder itself."""
    for number, entry in enumerate(entries, 1):
        name, file = (entry.get("name"), entry.get("file")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(file, str):
            raise BrokenWeights(f"`{path}` is damaged: its entry {number} has no `name` and `file`", hint=_AGAIN)
        if Path(file).name != file or Path(file).suffix not in MAGIC:
            raise BrokenWeights(f"`{path}` names `{file}`, which is no `.q4` or `.f16` file of this folder")
        yield name, file


def _read_header(index: Path, name: str, path: Path) -> Q4Tensor:
    try:
        with path.open("rb") as file:
            shape, offset = _parse(path, file)
        nbytes = path.stat().st_size
    except FileNotFoundError as error:
        raise BrokenWeights(f"`{index}` names `{path.name}`, which is missing", hint=_AGAIN) from error
    except OSError as error:
        raise BrokenWeights(f"`{path}` cannot be read: {error.strerror or error}") from error
    except struct.error as error:
        raise BrokenWeights(f"`{path}` is cut short: it ends within its header", hint=_AGAIN) from error
    tensor = Q4Tensor(name, path, shape, path.suffix == ".q4", offset, nbytes)
    if nbytes < offset + tensor.payload_bytes:
        raise BrokenWeights(
            f"`{path}` is cut short: its header asks for {offset + tensor.payload_bytes} bytes and it has {nbytes}",
            hint=_AGAIN,
        )
    return tensor


def _parse(path: Path, file: BinaryIO) -> tuple[tuple[int, ...], int]:
    """(shape, where the payload begins). Raises struct.error past the end."""
    magic, version, dimensions = struct.unpack("<4sII", file.read(12))
    if magic != MAGIC[path.suffix]:
        raise BrokenWeights(f"`{path}` does not begin with `{MAGIC[path.suffix].decode()}`", hint=_AGAIN)
    if version != VERSION[path.suffix]:
        raise UnknownFormat(
            f"`{path}` is version {version} of its format, and we read version {VERSION[path.suffix]}", hint=_AGAIN
        )
    if dimensions > _MAX_DIMENSIONS:
        raise BrokenWeights(f"`{path}` is damaged: it claims {dimensions} dimensions", hint=_AGAIN)
    *shape, count = struct.unpack(f"<{dimensions + 1}Q", file.read(8 * (dimensions + 1)))
    if prod(shape) != count or not count:
        raise BrokenWeights(f"`{path}` is damaged: its shape {tuple(shape)} does not hold {count} weights", hint=_AGAIN)
    return tuple(shape), 12 + 8 * (dimensions + 1)
