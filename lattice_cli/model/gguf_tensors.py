"""One tensor of a GGUF file -> mlx arrays.

Knows how ggml lays out blocks; knows no names. Q4_0, Q4_1, Q8_0, F16, BF16 and F32 keep every bit, in
the layout that `mx.load` gives; other types are expanded by the gguf package and quantized to 8 bit.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lattice_cli.errors import UnknownFormat
from lattice_cli.model.gguf_header import GgufHeader, GgufTensor, type_name

if TYPE_CHECKING:
    import mlx.core as mx

_CHUNK_WEIGHTS = 1 << 24  # expanded at once: 64 MB in float32
_F32, _F16, _Q4_0, _Q4_1, _Q8_0, _BF16 = 0, 1, 2, 3, 8, 30
EXACT = (_F32, _F16, _Q4_0, _Q4_1, _Q8_0, _BF16)

Bytes = npt.NDArray[np.uint8]


def read_tensor(header: GgufHeader, tensor: GgufTensor) -> dict[str, mx.array]:
    """`weight`, and `scales` and `biases` where it is quantized (affine, (rows, groups)).

    Raises: UnknownFormat for a type the gguf package cannot expand.
    """
    import mlx.core as mx

    raw = np.memmap(header.path, np.uint8, "r", tensor.offset, (tensor.nbytes,))
    if tensor.type_id == _F32:
        return {"weight": mx.array(raw.view(np.float32).reshape(tensor.shape))}
    if tensor.type_id == _F16:
        return {"weight": mx.array(raw.view(np.float16).reshape(tensor.shape))}
    if tensor.type_id == _BF16:
        return {"weight": mx.array(raw.view(np.uint16).reshape(tensor.shape)).view(mx.bfloat16)}
    rows = raw.reshape(*tensor.shape[:-1], -1)  # (rows, bytes)
    unpack = {_Q4_0: _unpack_q4_0, _Q4_1: _unpack_q4_1, _Q8_0: _unpack_q8_0}.get(tensor.type_id)
    if unpack is None or len(tensor.shape) != 2:
        return _requantize(header, tensor, rows)
    weight, scales, biases = unpack(rows)
    return {"weight": mx.array(weight), "scales": mx.array(scales), "biases": mx.array(biases)}


def outline_tensor(_header: GgufHeader, tensor: GgufTensor) -> dict[str, mx.array]:
    """What `read_tensor` gives in names, shapes and formats; every number is 0, nothing is read or evaluated."""
    import mlx.core as mx

    exact = {_F32: mx.float32, _F16: mx.float16, _BF16: mx.bfloat16}
    if tensor.type_id in exact:
        return {"weight": mx.zeros(tensor.shape, exact[tensor.type_id])}
    width = tensor.shape[-1]
    bits, group, dtype = 8, 32 if width % 64 else 64, mx.float32  # quantized again
    if len(tensor.shape) == 2 and tensor.type_id in EXACT:
        bits, group, dtype = 8 if tensor.type_id == _Q8_0 else 4, 32, mx.float16
    elif len(tensor.shape) != 2 or width % 32:
        return {"weight": mx.zeros(tensor.shape, mx.float32)}
    rows, groups = tensor.shape[0], width // group
    return {
        "weight": mx.zeros((rows, width * bits // 32), mx.uint32),
        "scales": mx.zeros((rows, groups), dtype),
        "biases": mx.zeros((rows, groups), dtype),
    }


Unpacked = tuple[npt.NDArray[np.uint32], npt.NDArray[np.float16], npt.NDArray[np.float16]]


def _unpack_q4_0(rows: Bytes) -> Unpacked:
    blocks = rows.reshape(rows.shape[0], -1, 18)  # (rows, groups, bytes)
    scales = half_at(blocks, 0)
    return _pack_nibbles(blocks[..., 2:]), scales, np.float16(-8) * scales


def _unpack_q4_1(rows: Bytes) -> Unpacked:
    blocks = rows.reshape(rows.shape[0], -1, 20)  # (rows, groups, bytes)
    return _pack_nibbles(blocks[..., 4:]), half_at(blocks, 0), half_at(blocks, 2)


def _unpack_q8_0(rows: Bytes) -> Unpacked:
    blocks = rows.reshape(rows.shape[0], -1, 34)  # (rows, groups, bytes)
    scales = half_at(blocks, 0)
    codes = np.ascontiguousarray(blocks[..., 2:] ^ np.uint8(0x80))  # signed to 0..255
    return codes.reshape(rows.shape[0], -1).view(np.uint32), scales, np.float16(-128) * scales


def half_at(blocks: Bytes, at: int) -> npt.NDArray[np.float16]:
    """The f16 at byte `at` of each block; `blocks` is (..., bytes)."""
    halves: npt.NDArray[np.float16] = np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)
    return halves[..., 0]


def _pack_nibbles(codes: Bytes) -> npt.NDArray[np.uint32]:
    """ggml: byte j of 16 holds weights j (low) and j + 16 (high). mlx: weights in order, low nibble first."""
    pairs = np.ascontiguousarray(codes).view("<u2")  # (rows, groups, 8): bytes 2k and 2k + 1
    ordered = np.empty(codes.shape, np.uint8)
    ordered[..., :8] = (pairs & 0xF) | (pairs >> 4 & 0xF0)
    ordered[..., 8:] = (pairs >> 4 & 0xF) | (pairs >> 8 & 0xF0)
    packed: npt.NDArray[np.uint32] = ordered.reshape(codes.shape[0], -1).view(np.uint32)
    return packed  # (rows, width / 8)


def read_dense(header: GgufHeader, tensor: GgufTensor) -> mx.array:
    """The tensor as it is where it is not quantized, else expanded to float32.

    Raises: UnknownFormat for a type the gguf package cannot expand.
    """
    import mlx.core as mx

    if tensor.type_id in (_F32, _F16, _BF16):
        return read_tensor(header, tensor)["weight"]
    raw = np.memmap(header.path, np.uint8, "r", tensor.offset, (tensor.nbytes,))
    rows = raw.reshape(prod(tensor.shape[:-1]), -1)  # (rows, bytes)
    dense = np.concatenate(list(_expanded(header, tensor, rows)))
    return mx.array(dense.reshape(tensor.shape))


def _expanded(header: GgufHeader, tensor: GgufTensor, rows: Bytes) -> Iterator[npt.NDArray[np.float32]]:
    """Rows in float32, (chunk, width), a chunk at a time to bound memory."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    step = max(1, _CHUNK_WEIGHTS // tensor.shape[-1])
    try:
        for start in range(0, rows.shape[0], step):
            chunk = dequantize(rows[start : start + step], GGMLQuantizationType(tensor.type_id))
            yield chunk.astype(np.float32, copy=False)
    except NotImplementedError as error:
        raise UnknownFormat(
            f"`{header.path}` holds `{tensor.name}` as {type_name(tensor.type_id)}, which cannot be expanded"
        ) from error


def _requantize(header: GgufHeader, tensor: GgufTensor, rows: Bytes) -> dict[str, mx.array]:
    """Expand, and quantize matrices to 8 bit in float32 groups."""
    import mlx.core as mx

    width = tensor.shape[-1]
    if len(tensor.shape) != 2 or width % 32:
        return {"weight": read_dense(header, tensor)}
    parts: list[tuple[mx.array, ...]] = []
    for dense in _expanded(header, tensor, rows):
        parts.append(mx.quantize(mx.array(dense), group_size=32 if width % 64 else 64, bits=8))
        mx.eval(parts[-1])
    joined = [mx.concatenate(list(part)) for part in zip(*parts, strict=True)]
    mx.eval(joined)
    return dict(zip(("weight", "scales", "biases"), joined, strict=True))
