"""Gated DeltaNet and reductions as primitives: against mlx-lm's own scan and mlx's own functions, on random shapes."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from lattice_cli.kernels import install
from tests.kernels.test_cpu import CACHE, error, isa, native  # noqa: F401

pytestmark = [pytest.mark.tiny, pytest.mark.timeout(300)]

GIVEN = ("q", "k", "v", "a", "b", "A_log", "dt_bias")


def layer(
    draw: random.Random, rows: int, length: int, heads: tuple[int, int], sizes: tuple[int, int]
) -> dict[str, Any]:
    """What a layer hands to `gated_delta_update`, as models have it: v is a part of a wider array.

    `heads`: of keys, and of values for each of them. `sizes`: of a key and of a value.
    """
    import mlx.core as mx
    from mlx_lm.models.gated_delta import normalize_qk

    (shared, group), (size, values) = heads, sizes
    count = shared * group
    q, k = (mx.random.normal((rows, length, shared, size)) for _ in range(2))
    q, k = normalize_qk(q, k, inv_scale=size**-0.5, eps=1e-6)
    wide = mx.random.normal((rows, length, 7 + count * values))
    return {
        "q": q,
        "k": k,
        "v": wide[..., 7:].reshape(rows, length, count, values),
        "a": mx.random.normal((rows, length, count)) * draw.choice([1, 8]),
        "b": mx.random.normal((rows, length, count)) * 3,
        "A_log": mx.log(mx.random.uniform(0.01, 16, (count,))),
        "dt_bias": mx.random.normal((count,)),
    }


def test_the_scan_is_that_of_mlx_lm(native: Any, isa: str) -> None:  # noqa: F811
    import mlx.core as mx
    from mlx_lm.models.gated_delta import gated_delta_update

    draw = random.Random(11)
    ours = partial(native.gated_delta_update, gated_delta_update)
    for length in (1, 1, 2, 3, 7, 16, 33, 64, 100, 300):
        rows, shared, group = draw.randint(1, 3), draw.randint(1, 3), draw.choice([1, 2, 4])
        size, values = draw.choice([16, 64, 128, 50]), draw.choice([32, 128, 50, 3])
        given = layer(draw, rows, length, (shared, group), (size, values))
        state = draw.choice([None, mx.random.normal((rows, shared * group, values, size))])
        mask = draw.choice([None, mx.arange(length) >= mx.array([[draw.randint(0, length)] for _ in range(rows)])])
        options = {"state": state, "mask": mask, "allow_neg_eigval": draw.random() < 0.3}
        wanted, got = gated_delta_update(**given, **options), ours(**given, **options)
        for name, want, have in zip(("out", "state"), wanted, got, strict=True):
            assert error(have, want) < 1e-4, (name, given["v"].shape, size, options)


def test_a_token_depends_neither_on_its_chunk_nor_on_its_company(native: Any, isa: str) -> None:  # noqa: F811
    """Bit for bit: prompts are read in chunks of any length, beside any other prompts."""
    import mlx.core as mx
    from mlx_lm.models.gated_delta import gated_delta_update

    ours = partial(native.gated_delta_update, gated_delta_update)
    given = layer(random.Random(2), 3, 50, (2, 2), (64, 48))
    whole, last = ours(**given)

    def part(row: slice, first: int, end: int) -> dict[str, Any]:
        return {n: a if a.ndim == 1 else a[row, first:end] for n, a in given.items()}

    for first in (1, 7, 16, 49):
        early, state = ours(**part(slice(None), 0, first))
        late, state = ours(**part(slice(None), first, 50), state=state)
        assert mx.array_equal(mx.concatenate([early, late], axis=1), whole) and mx.array_equal(state, last)
    state = None
    for token in range(50):
        out, state = ours(**part(slice(1, 2), token, token + 1), state=state)
        assert mx.array_equal(out[:, 0], whole[1:2, token])
    assert mx.array_equal(state, last[1:2])


def test_a_state_that_somebody_keeps_stays_as_it_is(native: Any) -> None:  # noqa: F811
    """The new state may take the old one's memory; never while a branch of the conversation still has it."""
    import mlx.core as mx
    from mlx_lm.models.gated_delta import gated_delta_update

    ours = partial(native.gated_delta_update, gated_delta_update)
    given = layer(random.Random(3), 1, 1, (2, 1), (32, 32))
    kept = mx.random.normal((1, 2, 32, 32))
    before = mx.array(kept.tolist())
    first = ours(**given, state=kept)
    again = ours(**given, state=kept)
    mx.eval(first)
    mx.eval(again)
    assert mx.array_equal(kept, before)
    assert mx.array_equal(first[0], again[0]) and mx.array_equal(first[1], again[1])
    state = first[1]
    del first
    for _ in range(3):  # nobody else has this one, from the second step on
        out, state = ours(**given, state=state)
        mx.eval(out, state)
    want = again[1]
    for _ in range(3):
        _, want = gated_delta_update(**given, state=want)
    assert error(state, want) < 1e-5


def test_what_the_scan_does_not_know_goes_to_mlx_lm(native: Any) -> None:  # noqa: F811
    import mlx.core as mx

    calls: list[dict[str, Any]] = []

    def original(*arrays: Any, **options: Any) -> str:
        calls.append(dict(zip((*GIVEN, "state", "mask"), arrays, strict=True)) | options)
        return "theirs"

    given = layer(random.Random(5), 1, 4, (2, 1), (16, 16))
    wide = mx.random.normal((1, 4, 2, 16))
    others: list[dict[str, Any]] = [
        {"a": wide},
        {"use_kernel": False},
        {"lower_bound": -5.1},
        {"v": given["v"].astype(mx.bfloat16)},
        {"state": mx.zeros((1, 2, 16, 16), mx.bfloat16)},
        {"mask": mx.ones((1, 1), mx.bool_)},
        {name: given[name][:, :0] for name in ("q", "k", "v", "a", "b")},
    ]
    for other in others:
        assert native.gated_delta_update(original, **(given | other)) == "theirs"
        arrays = {name: value for name, value in (given | other).items() if isinstance(value, mx.array)}
        assert all(calls[-1][name].dtype == value.dtype for name, value in arrays.items())
        assert all(mx.array_equal(calls[-1][name], value) for name, value in arrays.items())
    assert [call["use_kernel"] for call in calls] == [True, False, *[True] * 5]
    assert [call["lower_bound"] for call in calls] == [None, None, -5.1, *[None] * 4]
    with mx.stream(mx.cpu):
        assert native.gated_delta_update(original, **given) != "theirs"


def test_a_convolution_of_each_channel_is_that_of_mlx(native: Any, isa: str) -> None:  # noqa: F811
    import mlx.core as mx

    draw = random.Random(6)
    for _ in range(40):
        channels, taps, length = draw.randint(1, 600), draw.randint(1, 9), draw.randint(9, 90)
        x = mx.random.normal((draw.randint(1, 3), length, channels))
        x = draw.choice([x, x[:, 1:], x[..., ::2], x.swapaxes(1, 2)])
        channels = x.shape[-1]
        weight = mx.random.normal((channels, taps, 1)).astype(draw.choice([mx.float32, mx.float16]))
        if x.shape[1] >= taps:
            assert error(native.conv1d(x, weight, groups=channels), mx.conv1d(x, weight, groups=channels)) < 1e-5
    x = mx.random.normal((2, 20, 8))
    for options in ({"padding": 2}, {"stride": 2}, {"dilation": 2}):
        weight = mx.random.normal((8, 4, 1))
        assert mx.array_equal(native.conv1d(x, weight, groups=8, **options), mx.conv1d(x, weight, groups=8, **options))
    weight = mx.random.normal((6, 4, 8))
    assert mx.array_equal(native.conv1d(x, weight, 1, 1), mx.conv1d(x, weight, 1, 1))
    with pytest.raises(ValueError, match="conv"):
        native.conv1d(x[:, :0], weight)


def test_silu_is_that_of_mlx(native: Any, isa: str) -> None:  # noqa: F811
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.models.activations import precise_swiglu

    silu, precise = partial(native.silu, nn.silu), partial(native.precise_swiglu, precise_swiglu)
    for shape in ((), (1,), (0, 3), (3, 5, 7), (2, 70, 300)):
        gate, x = mx.random.normal(shape) * 20, mx.random.normal(shape)
        assert error(silu(gate), nn.silu(gate)) < 3e-6
        assert error(precise(x, gate, x), precise_swiglu(x, gate, x)) < 3e-6
    assert error(silu(gate.T), nn.silu(gate.T)) < 3e-6
    half = gate.astype(mx.float16)
    assert mx.array_equal(silu(half), nn.silu(half))
    assert precise(half, gate, x).dtype == mx.float16 and precise(x, half, x).dtype == mx.float32
    assert mx.allclose(mx.grad(lambda a: silu(a).sum())(x), mx.grad(lambda a: nn.silu(a).sum())(x))


def rows_of_all_kinds() -> list[Any]:
    """Arrays of float32 whose last axis is short, long, strided, tied, infinite or not a number."""
    import mlx.core as mx

    nan, inf = math.nan, math.inf
    rows: list[Any] = [
        mx.random.normal(shape) * 5 for shape in ((1,), (7,), (3, 49152), (2, 3, 100), (5, 1), (1, 8193))
    ]
    for few in (
        [-inf] * 3,
        [inf, 1],
        [inf, inf],
        [nan, 1],
        [1, nan, 2],
        [nan, inf],
        [inf, nan],
        [1, 2, 2],
        [0.0, -0.0],
    ):
        rows += [mx.array(few), mx.array([few * 40, [2.0] * 40 * len(few)])]
    rows += [mx.random.normal((6, 40)).T, mx.random.normal((4, 50, 6))[:, ::2, ::-1], mx.zeros((2, 20000))]
    tied = mx.zeros((1, 40000))
    tied[0, 17000] = tied[0, 30000] = 4
    return [*rows, tied]


@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_over_the_last_axis_are_those_of_mlx(native: Any, isa: str, keepdims: bool) -> None:  # noqa: F811
    import mlx.core as mx

    for row in rows_of_all_kinds():
        for axis in (None, -1, row.ndim - 1):
            want, got = mx.argmax(row, axis, keepdims), native.argmax(row, axis, keepdims)
            assert got.dtype == want.dtype and got.shape == want.shape and mx.array_equal(got, want), (row, axis)
        for axes in (None, -1, [-1], (row.ndim - 1,)):
            want, got = mx.logsumexp(row, axes, keepdims), native.logsumexp(row, axes, keepdims)
            assert got.dtype == want.dtype and got.shape == want.shape
            # mlx adds up one number after the other, which costs it up to 2e-5 on the long rows.
            assert mx.allclose(got, want, rtol=3e-5, atol=1e-6, equal_nan=True), (row, axes, got, want)


def test_logsumexp_of_a_vocabulary_is_exact(native: Any, isa: str) -> None:  # noqa: F811
    import mlx.core as mx
    import numpy as np

    for size, scale in ((49152, 1), (49152, 8), (248320, 4), (1000, 20)):
        x = mx.random.normal((2, size)) * scale
        exact = np.log(np.exp(np.array(x).astype(np.float64)).sum(axis=-1))
        assert np.allclose(np.array(native.logsumexp(x, axis=-1)), exact, rtol=2e-7, atol=0)


def test_other_reductions_go_to_mlx(native: Any) -> None:  # noqa: F811
    import mlx.core as mx

    x = mx.random.normal((3, 4, 5))
    for axis in (0, 1, -2):
        assert mx.array_equal(native.argmax(x, axis=axis), mx.argmax(x, axis=axis))
    for axes in (0, [0, 2], (1, 2), []):
        assert mx.allclose(native.logsumexp(x, axis=axes), mx.logsumexp(x, axis=axes))
    assert native.argmax(mx.array(2.5)).item() == 0 and native.logsumexp(mx.array(2.5)).item() == 2.5
    for other in (x.astype(mx.float16), (x * 9).astype(mx.int32)):
        assert mx.array_equal(native.argmax(other, -1), mx.argmax(other, -1))
        assert native.logsumexp(other, keepdims=True).dtype == mx.logsumexp(other, keepdims=True).dtype
    for shape in ((4, 0), (0, 4)):
        for reduction in (native.argmax, native.logsumexp):
            with pytest.raises(ValueError, match=r"argmax|logsumexp"):
                reduction(mx.zeros(shape), axis=-1)
    gradient = mx.grad(native.logsumexp)(x[0, 0])
    assert mx.allclose(gradient, mx.softmax(x[0, 0]))
    assert mx.array_equal(mx.vmap(native.argmax)(x[0]), mx.argmax(x[0], axis=-1))
    compiled = mx.compile(lambda a: native.argmax(a, axis=-1), shapeless=True)
    assert compiled(x).shape == (3, 4) and compiled(x[:2, :, :3]).shape == (2, 4)


def test_every_function_is_put_and_taken(native: Any) -> None:  # noqa: F811
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.models import gated_delta, olmo_hybrid, qwen3_5, qwen3_next

    owners = [(mx, "conv1d"), (mx, "logsumexp"), (mx, "argmax"), (mx.fast, "rope"), (qwen3_next, "swiglu")]
    owners += [(nn, "silu"), (qwen3_next, "precise_swiglu")]
    owners += [(module, "gated_delta_update") for module in (gated_delta, olmo_hybrid, qwen3_5, qwen3_next)]
    before = [getattr(owner, name) for owner, name in owners]
    install.put_functions(native)
    try:
        install.put_functions(native)
        assert not any(getattr(owner, name) is old for (owner, name), old in zip(owners, before, strict=True))
        given = layer(random.Random(8), 1, 3, (1, 2), (16, 16))
        out, state = qwen3_5.gated_delta_update(*given.values(), None, None, use_kernel=True)
        assert out.shape == (1, 3, 2, 16) and state.shape == (1, 2, 16, 16)
        wide = given | {"a": mx.random.normal((1, 3, 2, 16)), "A_log": mx.zeros((2, 1)), "dt_bias": mx.zeros((2, 16))}
        assert qwen3_5.gated_delta_update(**wide)[0].shape == (1, 3, 2, 16)  # mlx-lm's own
    finally:
        install.take_functions()
    assert all(getattr(owner, name) is old for (owner, name), old in zip(owners, before, strict=True))


def test_a_process_that_scanned_ends_cleanly(native: Any) -> None:  # noqa: F811
    program = f"""
import threading
from pathlib import Path
import mlx.core as mx
from mlx_lm.models import qwen3_5
from lattice_cli.kernels import build, install
from lattice_cli.settings import Home
native = build.load(Home(Path({str(CACHE)!r}), Path({str(CACHE)!r})))
native.start(3)
install.put_functions(native)
def work():
    q = mx.random.normal((1, 9, 4, 64)) * 0.1
    gate, head, state = mx.random.normal((1, 9, 4)), mx.zeros((4,)), None
    for _ in range(20):
        out, state = qwen3_5.gated_delta_update(q, q, q, gate, gate, head, head, state)
        out = mx.conv1d(out.reshape(1, 9, 256), mx.ones((256, 4, 1)), groups=256)
        mx.async_eval(mx.argmax(out, axis=-1), mx.logsumexp(out, axis=-1))
    mx.eval(out, state)
    install.take_functions()
    mx.clear_streams()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_draw_is_that_of_mlxs_operations(native: Any, isa: str) -> None:  # noqa: F811
    """Ids that are equal, that may not come, that are no numbers; a vocabulary that ends within a block."""
    import mlx.core as mx
    import numpy as np

    from lattice_cli.kernels import draws

    ours, rng, seen = partial(native.draw_likeliest, draws.draw_likeliest), np.random.default_rng(5), set()
    for trial in range(120):
        vocabulary, rows = int(rng.choice([5, 31, 32, 33, 1000, 4099, 49_152])), int(rng.integers(1, 4))
        decimals = int(rng.choice([1, 6]))  # with 1 there are equals, of which either may be among the likeliest
        values = (rng.normal(size=(rows, vocabulary)) * 4).round(decimals).astype(np.float32)
        if trial % 3 == 0:
            values[:, rng.random(vocabulary) < 0.7] = -np.inf
            values[:, 1] = 1.0
        logits = mx.array(values)
        noise = mx.random.gumbel((rows, min(vocabulary, int(rng.choice([1, 2, 20, 50])))), key=mx.random.key(trial))
        given = (noise, float(rng.choice([0.2, 1.4])), float(rng.choice([0, 0.1])), float(rng.choice([0, 0.5, 0.9, 1])))
        want = draws.draw_likeliest(logits, *given)
        assert mx.array_equal(ours(logits, *given), want) or decimals == 1, (trial, vocabulary, given[1:])
        assert mx.array_equal(ours(mx.stack([logits, logits], axis=1)[:, 0], *given), ours(logits, *given))
        assert mx.array_equal(
            ours(logits.astype(mx.bfloat16), *given), draws.draw_likeliest(logits.astype(mx.bfloat16), *given)
        )
        seen |= set(want.tolist())
    assert len(seen) > 60
    broken = mx.array([[np.nan, 1.0, np.nan, 3.0] * 20])
    assert ours(broken, mx.zeros((1, 4)), 1.0, 0.0, 1.0).item() == 3
    assert ours(broken * np.nan, mx.zeros((1, 4)), 1.0, 0.0, 1.0).item() == 0
    with pytest.raises(ValueError, match="count at most the vocabulary"):
        ours(broken, mx.zeros((1, 99)), 1.0, 0.0, 1.0)
