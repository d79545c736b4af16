"""Linear and embedding layers that compute from packed weights (the layout of native/packed.h).

Knows mlx's module protocol and the native module; knows no model. The classes are made on first use, because
this file must be importable without mlx.

Thread: worker
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def packed_classes() -> tuple[Any, Any]:
    """(PackedLinear, PackedEmbedding)."""
    from mlx.nn.layers.base import Module

    class Packed(Module):
        """`weight` is the packed store, so that memory is counted; its bytes mean nothing to anyone else."""

        def __init__(self, native: Any, packed: Any, digits: int, bias: Any | None = None) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.weight = packed.store
            if bias is not None:
                self.bias = bias
            # PERF: past nn.Module's look-ups, which cost 1 us each in every layer of every token.
            object.__setattr__(self, "_bias", bias)
            object.__setattr__(self, "_native", native)
            object.__setattr__(self, "_packed", packed)
            object.__setattr__(self, "_product", native.product)
            object.__setattr__(self, "_digits", digits)
            self.freeze()

        @property
        def output_rows(self) -> int:
            return int(self._packed.rows)

        def matrix(self) -> Any:
            """The handle that native blocks multiply with; it shares the memory."""
            return self._native.matrix(self._packed, self._digits, self._bias)

        def _extra_repr(self) -> str:
            return f"input_dims={self._packed.columns}, output_dims={self._packed.rows}, digits={self._digits}"

    class PackedLinear(Packed):
        """(..., columns) -> (..., rows), in float32."""

        def __call__(self, x: Any) -> Any:
            y = self._product(x, self._packed, self._digits)
            return y if self._bias is None else y + self._bias

    class PackedEmbedding(Packed):
        """ids (...) -> (..., columns) in float32; `as_linear` is the tied head."""

        def __call__(self, ids: Any) -> Any:
            return self._native.embed(ids, self._packed)

        def as_linear(self, x: Any) -> Any:
            return self._product(x, self._packed, self._digits)

    return PackedLinear, PackedEmbedding
