"""A compiled module, imported and held against mlx's own results: a wrong ABI or a changed meaning shows here.

The first time that is done in a process of its own (`python -m lattice_cli.kernels.self_check FILE`), because a wrong
ABI may also crash. Numbers are made without mlx's random state, which is not ours to advance.

Thread: worker
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

from lattice_cli.kernels.recipe import NAME, Unbuildable

TRIAL_S = 120
_EXACT, _FINE, _FAST = (
    1e-4,
    5e-4,
    5e-2,
)  # largest errors, relative to the largest magnitude; a wrong meaning is off by its size
_FAULTS = (ImportError, OSError, TypeError, AttributeError, ValueError, RuntimeError)


def load_module(file: Path, threads: int) -> Any:
    """Import a module, start its team of threads and compare it with mlx. Cost: 10 ms.

    Raises: Unbuildable.
    """
    if NAME in sys.modules:
        return sys.modules[NAME]
    import mlx.core  # noqa: F401  (brings libmlx, which the module asks for by name alone)

    try:
        spec = importlib.util.spec_from_loader(NAME, ExtensionFileLoader(NAME, str(file)))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.start(threads)
        differing = differences(module)
    except _FAULTS as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise Unbuildable(f"the compiled kernels do not fit this mlx ({reason})") from error
    if differing:
        raise Unbuildable(f"the compiled kernels compute otherwise than this mlx: {', '.join(differing)}")
    sys.modules[NAME] = module
    return module


def try_apart(file: Path) -> str | None:
    """The same in a process of its own: None, or what went wrong as a sentence. Cost: 0.5 s."""
    package = str(Path(__file__).parents[2])
    places = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", __name__, str(file)]
    environment = {**os.environ, "PYTHONPATH": places}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=TRIAL_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # nothing was learnt: the check of each start decides
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"the compiled kernels crash with this mlx (signal {-done.returncode})"
    said = done.stderr.strip().splitlines()
    return said[-1] if said else f"the compiled kernels could not be tried (status {done.returncode})"


def differences(native: Any) -> list[str]:
    """The primitives of a module whose team has started that compute otherwise than mlx."""
    return [name for name, error, limit in _errors(native) if not error < limit]  # NaN is no agreement


def _errors(native: Any) -> Iterator[tuple[str, float, float]]:
    """(primitive, error, largest error that is rounding) on small arrays."""
    import mlx.core as mx

    def wave(*shape: int) -> Any:
        size = 1
        for length in shape:
            size *= length
        return mx.sin(mx.arange(size, dtype=mx.float32) * 0.7 + len(shape)).reshape(shape)

    def apart(got: Any, want: Any) -> float:
        if got.shape != want.shape or got.dtype != want.dtype:
            return float("inf")
        return float(mx.abs(got - want).max() / mx.abs(want).max())

    codes, scales, biases = mx.quantize(wave(16, 128), 64, 4)
    packed, x = native.pack(codes, scales, biases, 64, 4), wave(3, 128)
    product = mx.quantized_matmul(x, codes, scales, biases, True, 64, 4)
    yield "product", apart(native.product(x, packed, 0), product), _EXACT
    yield "product in 8 bits", apart(native.product(x, packed, 1), product), _FAST
    yield "product in 15 bits", apart(native.product(x, packed, 2), product), _FINE
    yield "rms_norm", apart(native.rms_norm(x, x[0], 1e-5), mx.fast.rms_norm(x, x[0], 1e-5)), _EXACT
    rows = wave(1, 4, 5, 16)  # (rows, heads, tokens, size)
    given: dict[str, Any] = {"traditional": False, "base": 10000.0, "scale": 1.0, "offset": 3}
    yield "rope", apart(native.rope(rows, 16, **given), mx.fast.rope(rows, 16, **given)), _EXACT
    seen: dict[str, Any] = {"scale": 0.25, "mask": "causal"}
    keys = wave(1, 2, 9, 16)
    ours = native.sdpa(rows, keys, keys, **seen)
    yield "attention", apart(ours, mx.fast.scaled_dot_product_attention(rows, keys, keys, **seen)), _EXACT


def _main(file: str) -> int:
    """The process of `try_apart`."""
    import mlx.core as mx

    try:
        load_module(Path(file), threads=2)
    except Unbuildable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        mx.clear_streams()
    return 0


if __name__ == "__main__":
    raise SystemExit(_main(sys.argv[1]))
