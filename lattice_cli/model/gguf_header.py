"""A GGUF file's header: metadata and where each tensor lies. No weights are read.

Knows the file layout (GGUF 2 and 3, little endian, as in ggml's docs/gguf.md); knows no architecture.
The `gguf` package's own reader makes an array of every string: four seconds for 150,000 tokens.

Thread: any
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from lattice_cli.errors import BrokenWeights, UnknownFormat

Scalar = int | float | bool | str
Value = Scalar | list[Scalar]

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`type_id` is ggml's number; `shape` is row-major (outermost first); `offset` is in the file."""

    name: str
    type_id: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`metadata` without its arrays when read with `arrays=False`."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        """`general.architecture`; empty when the file names none."""
        return str(self.metadata.get("general.architecture", ""))

    def at(self, key: str) -> Value | None:
        """`ARCHITECTURE.key` of the metadata."""
        return self.metadata.get(f"{self.architecture}.{key}")


@cache
def type_name(type_id: int) -> str:
    """ggml's name for a tensor type, "Q4_K"; "type 99" for one the gguf package does not know."""
    from gguf.constants import GGMLQuantizationType

    try:
        return str(GGMLQuantizationType(type_id).name)
    except ValueError:
        return f"type {type_id}"


@cache
def block_size(type_id: int) -> tuple[int, int] | None:
    """(weights, bytes) of one block of a tensor type; None for a type the gguf package does not know."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        weights, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType(type_id)]
    except (ValueError, KeyError):
        return None
    return int(weights), int(nbytes)


def read_header(path: Path, *, arrays: bool = True) -> GgufHeader:
    """Read the header and check that the file is long enough for every tensor. Cost: up to 0.5 s.

    Raises: UnknownFormat (no GGUF, or a version or tensor type we do not know), BrokenWeights (cut short).
    """
    try:
        nbytes = path.stat().st_size
        with path.open("rb") as file:
            if nbytes == 0 or file.read(4) != b"GGUF":
                raise UnknownFormat(f"`{path}` is no GGUF file: it does not begin with `GGUF`")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = _Cursor(path, data).header(arrays)
    except OSError as error:
        raise BrokenWeights(f"`{path}` cannot be read: {error.strerror or error}") from error
    except (struct.error, UnicodeDecodeError, OverflowError) as error:
        raise BrokenWeights(
            f"`{path}` is cut short or damaged: its header does not end within the file's {nbytes} bytes",
            hint="fetch the file again",
        ) from error
    end = max((tensor.offset + tensor.nbytes for tensor in header.tensors), default=0)
    if end > nbytes:
        raise BrokenWeights(
            f"`{path}` is cut short: its tensors need {end} bytes and it has {nbytes}", hint="fetch the file again"
        )
    return header


class _Cursor:
    """Walks through the header's bytes; raises struct.error past their end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 4

    def header(self, arrays: bool) -> GgufHeader:
        version = self.number("<I")
        if version not in (2, 3):
            raise UnknownFormat(f"`{self.path}` is GGUF version {version}, and we read versions 2 and 3, little endian")
        tensor_count, pair_count = self.number("<Q"), self.number("<Q")
        metadata: dict[str, Value] = {}
        for _ in range(int(pair_count)):
            key = self.string()
            value = self.value(int(self.number("<I")), arrays)
            if value is not None:
                metadata[key] = value
        infos = [self.tensor_info() for _ in range(int(tensor_count))]
        alignment = int(str(metadata.get("general.alignment", 32)))
        start = -(-self.at // alignment) * alignment
        tensors = tuple(
            GgufTensor(name, type_id, shape, start + offset, self._nbytes(name, type_id, shape))
            for name, type_id, shape, offset in infos
        )
        return GgufHeader(self.path, metadata, tensors)

    def tensor_info(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self.string()
        shape = tuple(int(self.number("<Q")) for _ in range(int(self.number("<I"))))
        type_id, offset = int(self.number("<I")), int(self.number("<Q"))
        return name, type_id, shape[::-1], offset

    def _nbytes(self, name: str, type_id: int, shape: tuple[int, ...]) -> int:
        block = block_size(type_id)
        if block is None:
            raise UnknownFormat(f"`{self.path}` holds `{name}` as {type_name(type_id)}, a tensor type we do not know")
        return prod(shape) // block[0] * block[1]

    def number(self, layout: str) -> int | float | bool:
        (value,) = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        number: int | float | bool = value
        return number

    def string(self) -> str:
        end = self._string_end()
        text = self.data[self.at : end].decode("utf-8")
        self.at = end
        return text

    def _string_end(self) -> int:
        (length,) = struct.unpack_from("<Q", self.data, self.at)
        self.at += 8
        if length > len(self.data) - self.at:
            raise struct.error("string beyond the end")
        return self.at + int(length)

    def value(self, kind: int, arrays: bool) -> Value | None:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(self._layout(kind))
        kind, count = int(self.number("<I")), int(self.number("<Q"))
        if kind == _ARRAY:
            raise UnknownFormat(f"`{self.path}` nests arrays in its metadata, which we do not read")
        if kind == _STRING:
            return self._strings(count, arrays)
        layout = self._layout(kind)
        start, self.at = self.at, self.at + count * struct.calcsize(layout)
        if self.at > len(self.data):
            raise struct.error("array beyond the end")
        return list(struct.unpack_from(f"<{count}{layout[1]}", self.data, start)) if arrays else None

    def _strings(self, count: int, arrays: bool) -> Value | None:
        # PERF: vocabulary and merges are 100,000 strings; without a call for each they take 40 ms instead of 120.
        texts: list[Scalar] = []
        data, at, size, length_at = self.data, self.at, len(self.data), struct.Struct("<Q").unpack_from
        for _ in range(count):
            start = at + 8
            at = start + length_at(data, at)[0]
            if at > size:
                raise struct.error("string beyond the end")
            if arrays:
                texts.append(data[start:at].decode("utf-8"))
        self.at = at
        return texts if arrays else None

    def _layout(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise UnknownFormat(f"`{self.path}` holds a metadata value of type {kind}, which we do not know")
        return _SCALARS[kind]
