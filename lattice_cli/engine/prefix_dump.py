"""Caches of mlx-lm as bytes and back, without pickle: what a file says is never run.

Knows arrays, and the state that each kind of cache tells of itself; knows no files.

Thread: worker
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

# Kinds whose state is arrays, numbers and lists of them.
PORTABLE = frozenset(("KVCache", "RotatingKVCache", "ArraysCache", "QuantizedKVCache"))
_DTYPES = frozenset(("float32", "float16", "bfloat16", "uint8", "uint32", "int32", "int64"))


class NotPortable(Exception):
    """Something that has no bytes here, or bytes that are no such thing."""


def pack(value: Any, parts: list[bytes]) -> Any:
    """JSON for a value of arrays, lists and plain values; the arrays' bytes go to `parts`. Raises: NotPortable."""
    if isinstance(value, mx.array):
        name = str(value.dtype).removeprefix("mlx.core.")
        if name not in _DTYPES:
            raise NotPortable(name)
        flat = mx.contiguous(value).flatten()
        parts.append(np.array(flat.view(mx.uint8)).tobytes() if flat.size else b"")
        return {"array": len(parts) - 1, "dtype": name, "shape": list(value.shape)}
    if isinstance(value, list | tuple):
        return [pack(one, parts) for one in value]
    if value is None or isinstance(value, int | float | str):
        return value
    raise NotPortable(type(value).__name__)


def unpack(told: Any, parts: list[bytes]) -> Any:
    """The value of such JSON. Raises: NotPortable where the two do not fit each other."""
    if isinstance(told, list):
        return [unpack(one, parts) for one in told]
    if not isinstance(told, dict):
        return told
    try:
        index, name, shape = told["array"], told["dtype"], told["shape"]
        if name not in _DTYPES or not all(isinstance(size, int) for size in shape):
            raise NotPortable(str(name))
        dtype = getattr(mx, name)
        raw = mx.array(np.frombuffer(parts[index], np.uint8))
        return raw.view(dtype).reshape(shape) if raw.size else mx.zeros(shape, dtype)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise NotPortable(str(error)) from error


def pack_cache(cache: Any, kind: str, parts: list[bytes]) -> Any:
    """JSON for one cache. Raises: NotPortable."""
    if kind not in PORTABLE:
        raise NotPortable(kind)
    return {"kind": kind, "state": pack(cache.state, parts)}


def unpack_cache(told: Any, kind: str, parts: list[bytes]) -> Any:
    """The cache, which must be of `kind`. Raises: NotPortable."""
    from mlx_lm.models import cache as kinds

    if not isinstance(told, dict) or told.get("kind") != kind or kind not in PORTABLE:
        raise NotPortable(f"no {kind}")
    try:
        return getattr(kinds, kind).from_state(unpack(told.get("state"), parts))
    except (TypeError, ValueError) as error:
        raise NotPortable(str(error)) from error
