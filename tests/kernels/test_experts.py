"""A mixture's experts from packed weights, against mlx-lm's own stacks.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lattice_cli.kernels import install, native_choice
from lattice_cli.model.upstream import file_limit_kept
from lattice_cli.settings import Home

pytestmark = [pytest.mark.tiny, pytest.mark.timeout(300)]

CACHE = Path("~/.cache/lattice-tests").expanduser()  # where compiled kernels stay between runs
EXPERTS, HIDDEN, WIDE = 6, 64, 128


@pytest.fixture(scope="module")
def native() -> Any:
    found = native_choice.choose(Home(CACHE, CACHE / "models", kernels="exact"))
    if found.module is None:
        pytest.skip(found.reason)
    return found.module


def block(kind: str, *, bias: bool = False) -> Any:
    """A module with a SwitchGLU in it, always the same one for a kind."""
    from mlx.nn import quantize
    from mlx.nn.layers.base import Module

    with file_limit_kept():
        from mlx_lm.models.switch_layers import SwitchGLU

    mx.random.seed(3)
    holder: Any = Module()  # type: ignore[no-untyped-call]
    holder.switch_mlp = SwitchGLU(HIDDEN, WIDE, EXPERTS, bias=bias)
    if kind.startswith(("4", "8")):
        bits, group_size = map(int, kind.split("-"))
        quantize(holder, group_size, bits)
    elif kind == "mxfp4":
        quantize(holder, 32, 4, mode="mxfp4")
    elif kind == "bfloat16":
        holder.set_dtype(mx.bfloat16)
    mx.eval(holder.parameters())
    return holder


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "4-32", "4-64", "8-32", "8-64"])
@pytest.mark.parametrize(("rows", "tokens", "chosen"), [(1, 1, 2), (2, 1, 3), (1, 70, 2), (3, 5, 1)])
def test_experts_compute_what_mlx_lms_compute(native: Any, kind: str, rows: int, tokens: int, chosen: int) -> None:
    """Max abs error 1e-5 on values of about 0.1, some experts chosen by many tokens and some by none."""
    whole, packed = block(kind), block(kind)
    if kind == "bfloat16":
        whole.set_dtype(mx.float32)  # mlx 0.32 has no gathered products in bfloat16 on a CPU
    assert install.pack_modules(packed, native, exact=True) == 1
    assert type(packed.switch_mlp).__name__ == "PackedExperts"
    x = mx.random.normal((rows, tokens, HIDDEN))
    indices = mx.random.randint(0, EXPERTS - 1, (rows, tokens, chosen))
    wanted = whole.switch_mlp(x, indices)
    found = packed.switch_mlp(x, indices)
    assert found.shape == wanted.shape == (rows, tokens, chosen, HIDDEN)
    assert float(mx.abs(found - wanted).max()) < 1e-5
    fast = block(kind)
    install.pack_modules(fast, native, exact=False)
    assert float(mx.abs(fast.switch_mlp(x, indices) - wanted).max()) < 0.02 * float(mx.abs(wanted).max())


def test_the_memory_of_packed_experts_is_counted(native: Any) -> None:
    from mlx.utils import tree_flatten

    packed = block("4-32")
    install.pack_modules(packed, native, exact=True)
    leaves: Any = tree_flatten(packed.parameters())
    nbytes = sum(array.nbytes for _, array in leaves)
    assert 0.5 < nbytes / (EXPERTS * 3 * HIDDEN * WIDE) < 0.9  # bytes a weight


@pytest.mark.parametrize(("kind", "bias"), [("mxfp4", False), ("4-32", True)])
def test_experts_that_are_not_known_stay_mlx_lms(native: Any, kind: str, bias: bool) -> None:
    kept = block(kind, bias=bias)
    assert install.pack_modules(kept, native, exact=True) == 0
    assert type(kept.switch_mlp).__name__ == "SwitchGLU"
    assert kept.switch_mlp(mx.ones((1, 1, HIDDEN)), mx.array([[[0, 1]]])).shape == (1, 1, 2, HIDDEN)
