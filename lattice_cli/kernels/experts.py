"""The experts of a mixture, computed from packed weights: an expert at a time, for the tokens that chose it.

UPSTREAM: mlx 0.32 multiplies by chosen experts in scalar code on a CPU (`gather_qmm`), token by token. Here the host
reads which experts were chosen, a wait in every layer, and each expert's three products are the native ones. Knows
mlx-lm's SwitchGLU; knows no model.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def packed_experts(module: Any, native: Any, digits: Sequence[int], bits: Sequence[int]) -> Any | None:
    """What stands for a SwitchGLU; None for one that we do not know. `digits` are of gate, up and down; `bits` are
    those that can be packed.
    """
    from mlx_lm.models.switch_layers import SwiGLU

    stacks = [module[name] for name in PROJECTIONS]
    if type(module.activation) is not SwiGLU or any("bias" in stack for stack in stacks):
        return None
    packed = [_packed(stack, native, bits) for stack in stacks]
    if any(one is None for one in packed):
        return None
    return _class()(native, packed, digits)


def _packed(stack: Any, native: Any, bits: Sequence[int]) -> list[Any] | None:
    """Each expert's matrix in our layout."""
    import mlx.core as mx
    from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

    count = stack.num_experts
    if type(stack) is QuantizedSwitchLinear:
        layout: Any = stack
        if stack.mode != "affine" or stack.bits not in bits or stack.global_scale is not None:
            return None
        return [
            native.pack(layout.weight[at], layout.scales[at], layout.biases[at], layout.group_size, layout.bits)
            for at in range(count)
        ]
    if type(stack) is SwitchLinear and stack.weight.dtype in (mx.float32, mx.bfloat16, mx.float16):
        return [native.pack_dense(stack.weight[at]) for at in range(count)]
    return None


@cache
def _class() -> type[Any]:
    """Made on first use: this file must be importable without mlx."""
    import mlx.core as mx
    import numpy as np
    from mlx.nn.layers.base import Module

    class PackedExperts(Module):
        """x (..., columns), indices (..., chosen) -> (..., chosen, columns), in float32."""

        def __init__(self, native: Any, packed: Sequence[list[Any]], digits: Sequence[int]) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.stores = [one.store for stack in packed for one in stack]  # so that memory is counted
            object.__setattr__(self, "_native", native)
            object.__setattr__(self, "_experts", list(zip(*packed, strict=True)))
            object.__setattr__(self, "_digits", tuple(digits))
            self.freeze()

        @property
        def num_experts(self) -> int:
            return len(self._experts)

        @property
        def expert_weights(self) -> int:
            """Of all experts together."""
            return sum(int(one.rows) * int(one.columns) for expert in self._experts for one in expert)

        def __call__(self, x: Any, indices: Any) -> Any:
            chosen = np.array(indices).reshape(-1)  # (tokens * chosen,): waits for the router
            rows = x.reshape(-1, x.shape[-1])  # (tokens, columns)
            order = np.argsort(chosen, kind="stable")
            experts, starts = np.unique(chosen[order], return_index=True)
            ends = [*starts[1:], len(order)]
            several = indices.shape[-1]
            parts = [
                self._one(int(expert), rows[mx.array(order[start:end] // several)])
                for expert, start, end in zip(experts, starts, ends, strict=True)
            ]
            back = mx.array(np.argsort(order))
            return mx.concatenate(parts)[back].reshape(*indices.shape, -1)

        def _one(self, expert: int, x: Any) -> Any:
            """(tokens, columns) -> (tokens, columns)"""
            product, native = self._native.product, self._native
            gate, up, down = self._experts[expert]
            held = native.swiglu(product(x, gate, self._digits[0]), product(x, up, self._digits[1]))
            return product(held, down, self._digits[2])

    return PackedExperts
