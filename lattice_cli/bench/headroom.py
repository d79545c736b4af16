"""How near the limit a speed is: the bytes a decode step must move and the operations a prompt must take, against what
this machine was measured to do at best. Knows the arithmetic; measures nothing.

Thread: any
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lattice_cli.bench.speed import Point
from lattice_cli.engine.measure_limits import MachineLimits, Weights

LEFT_OUT = (
    "left out: attention's own operations, norms, activations, drawing a token, what is written; a share above 100% "
    "means that the kernels beat this yardstick (products of 8-bit numbers, weights that stay in a cache)"
)


@dataclass(frozen=True, slots=True)
class Headroom:
    """What a point must do, and the best this machine could do it at; shares are of measured speeds."""

    weights: Weights
    machine: MachineLimits
    point: Point

    @property
    def best_bytes_s(self) -> float:
        """Whichever moves more: reading alone, or a copy, which reads and writes."""
        return max(self.machine.copy_bytes_s, self.machine.read_bytes_s)

    @property
    def context_tokens(self) -> float:
        """The mean over the reply."""
        return self.point.prompt_tokens + self.point.tokens / 2

    @property
    def step_bytes(self) -> float:
        """Of one decode step of all rows."""
        context = (self.weights.token_bytes or 0.0) * self.context_tokens
        return self.weights.step_bytes + context * self.point.rows

    @property
    def floor_s(self) -> float:
        """What a step of all rows takes if nothing but memory holds it up."""
        return self.step_bytes / self.best_bytes_s

    @property
    def prompt_ops(self) -> int:
        """Of one prompt token."""
        return 2 * self.weights.layer_weights

    def decode_percent(self, tokens_s: float | None) -> float | None:
        return None if tokens_s is None else 100 * tokens_s / self.point.rows * self.step_bytes / self.best_bytes_s

    def prefill_percent(self, tokens_s: float | None) -> float | None:
        return None if tokens_s is None else 100 * tokens_s * self.prompt_ops / self.machine.gemm_ops_s

    def explain(self, prefill: float | None, decode: float | None) -> Iterator[str]:
        """The arithmetic, a line each."""
        weights, machine, rows = self.weights, self.machine, self.point.rows
        yield (
            f"measured here: copy {_giga(machine.copy_bytes_s)} GB/s, read {_giga(machine.read_bytes_s)} GB/s, "
            f"products {_giga(machine.gemm_ops_s)} GFLOP/s ({machine.how})"
        )
        context = (
            f"{weights.token_bytes:,.0f} bytes" if weights.token_bytes is not None else "unknown bytes (taken as 0)"
        )
        yield (
            f"a decode step moves {weights.step_bytes / 1e6:,.1f} MB of weights + {rows} x {self.context_tokens:,.0f} "
            f"tokens x {context} of keys and values = {self.step_bytes / 1e6:,.1f} MB, "
            f"which takes {1000 * self.floor_s:,.3f} ms"
        )
        if decode is not None:
            yield (
                f"{decode:,.1f} tok/s / {rows} row(s) x {self.step_bytes / 1e6:,.1f} MB = "
                f"{_giga(decode / rows * self.step_bytes)} GB/s, {self.decode_percent(decode):.0f}% of "
                f"{_giga(self.best_bytes_s)}"
            )
        yield f"a prompt token takes 2 x {weights.layer_weights:,} weights = {self.prompt_ops / 1e9:,.3f} G operations"
        if prefill is not None:
            yield (
                f"{prefill:,.1f} tok/s x {self.prompt_ops / 1e9:,.3f} = {_giga(prefill * self.prompt_ops)} GFLOP/s, "
                f"{self.prefill_percent(prefill):.0f}% of {_giga(machine.gemm_ops_s)}"
            )
        yield LEFT_OUT


def _giga(value: float) -> str:
    return f"{value / 1e9:,.1f}"
