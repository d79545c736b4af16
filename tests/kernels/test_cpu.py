"""The native primitives against mlx's own functions, on random shapes.

Errors are relative to the largest magnitude. The product's fast mode rounds activations to 8 bits, so it is held
to what that costs; everything else to float32.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.kernels import build
from lattice_cli.settings import Home

pytestmark = [pytest.mark.tiny, pytest.mark.timeout(300)]

CACHE = Path(os.environ.get("LATTICE_TEST_CACHE", "~/.cache/lattice-tests")).expanduser()


@pytest.fixture(scope="module")
def native() -> Any:
    """The compiled module, kept between runs: a compilation takes half a minute."""
    try:
        module = build.load(Home(CACHE, CACHE / "models"))
    except build.Unbuildable as error:
        pytest.skip(str(error))
    module.start(2)
    return module


@pytest.fixture(params=["AVX512-VNNI", "AVX2-VNNI", "AVX2", "NEON dot product", "plain C++"])
def isa(request: pytest.FixtureRequest, native: Any) -> Iterator[str]:
    best = native.isa()
    if not native.choose(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    native.choose(best)


def error(got: Any, want: Any) -> float:
    import mlx.core as mx

    assert got.shape == want.shape and got.dtype == mx.float32
    if want.size == 0:
        return 0.0
    return float(mx.abs(got - want).max() / mx.maximum(mx.abs(want).max(), 1e-20))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_a_product_is_the_quantized_product_of_mlx(native: Any, isa: str, bits: int) -> None:
    import mlx.core as mx

    draw = random.Random(bits)
    for group in (32, 64, 128):
        for kind in (mx.float16, mx.bfloat16, mx.float32):
            rows, columns = 8 * draw.randint(1, 20), group * draw.randint(1, 4)
            codes, scales, biases = mx.quantize(mx.random.normal((rows, columns)).astype(kind), group, bits)
            packed = native.pack(codes, scales, biases, group, bits)
            shape = draw.choice([(columns,), (1, columns), (2, 7, columns), (0, columns), (1, 9, columns)])
            x = mx.random.normal(shape)
            arguments = (codes, scales.astype(mx.float32), biases.astype(mx.float32), True, group, bits)
            want = mx.quantized_matmul(x, *arguments)
            assert error(native.product(x, packed, 0), want) < 5e-6
            assert error(native.product(x, packed, 1), want) < 5e-2
            assert error(native.product(x, packed, 2), want) < 5e-4
            turned = mx.random.normal((columns, 3)).T  # strided
            want = mx.quantized_matmul(turned, *arguments)
            assert error(native.product(turned, packed, 0), want) < 5e-6


def test_a_row_does_not_depend_on_its_company(native: Any, isa: str) -> None:
    """Greedy answers must not change with the number of requests that run beside them."""
    import mlx.core as mx

    packed = native.pack(*mx.quantize(mx.random.normal((336, 192)), 32, 4), 32, 4)
    x = mx.random.normal((17, 192))
    for digits in (0, 1, 2):
        together = native.product(x, packed, digits)
        for row in range(17):
            assert mx.array_equal(native.product(x[row : row + 1], packed, digits)[0], together[row])
        assert mx.array_equal(native.product(x[3:12], packed, digits), together[3:12])


def test_embedding_rows_are_the_dequantized_weights(native: Any) -> None:
    import mlx.core as mx

    for bits in (4, 6, 8):
        quantized = mx.quantize(mx.random.normal((40, 128)).astype(mx.float16), 64, bits)
        codes, scales, biases = quantized[0], *(part.astype(mx.float32) for part in quantized[1:])
        ids = mx.array([[0, 39, 5], [17, -1, 5]])
        want = mx.dequantize(codes, scales, biases, 64, bits)[ids]
        assert error(native.embed(ids, native.pack(*quantized, 64, bits)), want) < 1e-6


def test_norm_and_swiglu_are_those_of_mlx(native: Any, isa: str) -> None:
    import mlx.core as mx

    for shape in ((1, 1, 576), (3, 5, 7), (2, 300, 48), (0, 16), (1,)):
        x, y = mx.random.normal(shape) * 5, mx.random.normal(shape)
        weight = mx.random.normal(shape[-1:])
        assert error(native.rms_norm(x, weight, 1e-5), mx.fast.rms_norm(x, weight, 1e-5)) < 2e-6
        assert error(native.rms_norm(x, None, 1e-5), mx.fast.rms_norm(x, None, 1e-5)) < 2e-6
        assert error(native.swiglu(x, y), x * mx.sigmoid(x) * y) < 2e-6
    strided = mx.random.normal((4, 6, 32)).transpose(1, 0, 2)[..., ::2]
    assert error(native.rms_norm(strided, None, 1e-5), mx.fast.rms_norm(strided, None, 1e-5)) < 2e-6
    assert native.rms_norm(x.astype(mx.bfloat16), None, 1e-5).dtype == mx.bfloat16  # handed to mlx


@pytest.mark.parametrize("traditional", [False, True])
def test_rope_is_that_of_mlx(native: Any, isa: str, traditional: bool) -> None:
    import mlx.core as mx

    draw = random.Random(7)
    for _ in range(25):
        rows, heads, length, size = draw.randint(1, 3), draw.randint(1, 4), draw.randint(1, 9), 16 * draw.randint(1, 6)
        dims = draw.choice([size, size // 2])
        x = mx.random.normal((rows, length, heads, size)).transpose(0, 2, 1, 3)
        offset = draw.choice([0, 5, 200, mx.array([draw.randint(-4, 90) for _ in range(rows)]), mx.array(11)])
        frequencies = draw.choice([None, mx.random.uniform(1, 900, (dims // 2,))])
        given: dict[str, Any] = {
            "traditional": traditional,
            "base": None if frequencies is not None else 10000.0,
            "scale": draw.choice([1.0, 0.25]),
            "offset": offset,
            "freqs": frequencies,
        }
        assert error(native.rope(x, dims, **given), mx.fast.rope(x, dims, **given)) < 1e-4, given


def test_attention_is_that_of_mlx(native: Any, isa: str) -> None:
    import mlx.core as mx

    draw = random.Random(9)
    for _ in range(60):
        rows, shared, group = draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 4)
        size, length = draw.choice([20, 64, 80, 96, 128, 256]), draw.choice([1, 1, 2, 5, 33, 100])
        keys = length + draw.choice([0, 3, 127, 300])
        q = mx.random.normal((rows, length, shared * group, size)).transpose(0, 2, 1, 3)
        room = mx.random.normal((2, rows, shared, keys + 20, size))
        kind = draw.choice([mx.float32, mx.float32, mx.float16])
        k, v = (part[:, :, :keys, :].astype(kind) for part in room)
        if draw.random() < 0.2:
            k = mx.contiguous(k.swapaxes(2, 3)).swapaxes(2, 3)
        seen = mx.random.uniform(shape=(rows, 1, length, keys)) < 0.8
        seen[..., 0] = True
        mask = draw.choice([None, "causal", seen, seen[:1, 0], mx.where(seen, 0.0, -mx.inf), seen[:, :, :1]])
        want = mx.fast.scaled_dot_product_attention(
            q, k.astype(mx.float32), v.astype(mx.float32), scale=size**-0.5, mask=mask
        )
        got = native.sdpa(q, k, v, scale=size**-0.5, mask=mask)
        assert error(got, want) < 1e-5, (q.shape, k.shape, kind, mask if isinstance(mask, str) else type(mask))


def test_long_contexts_and_sinks(native: Any) -> None:
    import mlx.core as mx

    q, k = mx.random.normal((1, 6, 1, 64)), mx.random.normal((1, 2, 8192, 64))
    want = mx.fast.scaled_dot_product_attention(q, k, k, scale=0.125)
    assert error(native.sdpa(q, k, k, scale=0.125), want) < 1e-5
    sinks = mx.random.normal((6,))  # not ours: handed to mlx
    want = mx.fast.scaled_dot_product_attention(q, k, k, scale=0.125, sinks=sinks)
    assert error(native.sdpa(q, k, k, scale=0.125, sinks=sinks), want) < 1e-6


def test_a_process_that_used_the_kernels_ends_cleanly(native: Any, tmp_path: Path) -> None:
    """Helper threads that could be joined at exit would abort the process."""
    program = f"""
import sys, threading
from pathlib import Path
import mlx.core as mx
from lattice_cli.kernels import build
from lattice_cli.settings import Home
native = build.load(Home(Path({str(CACHE)!r}), Path({str(CACHE)!r})))
native.start(3)
def work():
    packed = native.pack(*mx.quantize(mx.random.normal((2048, 512)), 32, 4), 32, 4)
    for _ in range(20):
        mx.eval(native.product(mx.random.normal((1, 512)), packed))
    mx.clear_streams()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
