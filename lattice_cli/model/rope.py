"""Rotary embedding with a factor for each frequency, as GGUF files of Llama 3 carry them.

Imports mlx at its top: import it on the worker thread only, after `blas.preload`.

Thread: worker
"""

from __future__ import annotations

import mlx.core as mx
from mlx.nn.layers.base import Module


class FactoredRope(Module):
    """Half-split rotation of (rows, heads, tokens, width) with wavelengths `base ** (2i / width) * factors[i]`."""

    def __init__(self, width: int, base: float, factors: mx.array) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._width = width
        exponents = mx.arange(0, width, 2, dtype=mx.float32) / width  # (width / 2,)
        self._freqs = base**exponents * factors.astype(mx.float32)  # (width / 2,)
        mx.eval(self._freqs)

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        return mx.fast.rope(x, self._width, traditional=False, base=None, scale=1.0, offset=offset, freqs=self._freqs)
