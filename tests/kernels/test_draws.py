"""A draw from a whole vocabulary as a primitive: beside a sort of all in float64, and beside mlx's operations.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from tests.kernels.test_cpu import isa, native  # noqa: F401

pytestmark = [pytest.mark.tiny, pytest.mark.timeout(300)]

NEAR = 1e-6  # of the mass: where float32 decides


def drawn(native: Any, values: Any, key: int, scale: float, min_p: float, top_p: float) -> int:  # noqa: F811
    import mlx.core as mx

    from lattice_cli.kernels import draws

    logits = mx.array(np.asarray(values, dtype=np.float32)[None])
    out = native.draw_kept(draws.draw_kept, logits, mx.random.key(key), scale, min_p, top_p)
    assert out.shape == (1,) and out.dtype == mx.uint32
    return int(out.item())


@cache
def telling_keys() -> list[tuple[int, float]]:
    """Keys and the number in [0, 1) that each gives: some in the middle, and those that draw the first and the last of
    what is kept.
    """
    import mlx.core as mx

    shares = sorted((mx.random.uniform(shape=(1,), key=mx.random.key(key)).item(), key) for key in range(4000))
    return [(key, share) for share, key in (*shares[:2], *shares[-2:], *shares[500:3500:1000])]


class Sorted:
    """What is kept by the definition, and its mass in float64."""

    def __init__(self, values: np.ndarray, scale: float, min_p: float, top_p: float) -> None:
        v = values * np.float32(scale)
        if min_p > 0:
            v = np.where(v < v.max() + np.log(np.float32(min_p)), -np.inf, v)
        self.ids = np.argsort(-v, kind="stable") if top_p < 1 else np.arange(len(v))
        self.mass = np.cumsum(np.exp(v[self.ids].astype(np.float64) - v.max()))
        self.near, self.sure = NEAR * self.mass[-1], True
        if top_p < 1:
            limit = max(float(np.float32(top_p)), 1e-7) * self.mass[-1]
            count = min(int(np.searchsorted(self.mass, limit)) + 1, len(v))
            self.sure = bool(np.abs(self.mass[max(0, count - 2) : count] - limit).min() > self.near)
            self.mass = self.mass[:count]

    def drawn(self, share: float) -> int | None:
        """None: so near a bound that rounding decides."""
        target = share * self.mass[-1]
        at = min(int(np.searchsorted(self.mass, target, side="right")), len(self.mass) - 1)
        sure = self.sure and np.abs(self.mass[max(0, at - 1) : at + 1] - target).min() > self.near
        return int(self.ids[at]) if sure else None


KINDS = {
    "peaked": lambda rng, size: rng.normal(size=size) * 6,
    "sloping": lambda rng, size: rng.normal(size=size),
    "nearly flat": lambda rng, size: rng.normal(size=size) * 0.02,
    "tied": lambda rng, size: rng.normal(size=size).round(1) * 3,
    "flat": lambda rng, size: np.ones(size),
    "masked": lambda rng, size: np.where(rng.random(size) < 0.99, -np.inf, rng.normal(size=size) * 2),
    "one": lambda rng, size: np.where(np.arange(size) == size // 3, 2.0, -np.inf),
    "two zeros": lambda rng, size: np.where(rng.random(size) < 0.5, 0.0, -0.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_is_what_a_sort_of_all_draws(native: Any, kind: str) -> None:  # noqa: F811
    rng, told, ids = np.random.default_rng(sum(kind.encode())), 0, set()
    for number, size in enumerate((1, 2, 255, 256, 257, 1000, 4099, 1000, 49_152, 151_936)):
        values = KINDS[kind](rng, size).astype(np.float32)
        values[size // 2] = values.max() if np.isfinite(values).any() else 1.0
        bounds = ((0.0, 0.9), (0.05, 0.95), (0.1, 1.0), (0.0, 0.999), (0.0, 0.1), (0.0, 1.0), (0.0, 0.0))
        for min_p, top_p in bounds[: 4 if size > 5000 else None]:
            scale = (0.7, 1.0, 5.0)[(number + int(top_p * 10)) % 3]
            whole = Sorted(values, scale, min_p, top_p)
            for key, share in telling_keys():
                want = whole.drawn(share)
                if want is not None:
                    assert drawn(native, values, key, scale, min_p, top_p) == want, (size, scale, min_p, top_p, share)
                    told, ids = told + 1, ids | {want}
    assert told > 150 and (len(ids) > 20 or kind == "one")


def test_the_kept_set_ends_where_its_mass_reaches_top_p(native: Any, isa: str) -> None:  # noqa: F811
    """Of equals the lowest ids stay; where a bound is met exactly, nothing more."""
    for size in (8, 512, 49_152):
        ids = {drawn(native, np.ones(size), key, 1.0, 0.0, 0.5) for key, _ in telling_keys()}
        assert max(ids) in range(size // 2 - 1 - size // 1000, size // 2) and min(ids) <= size // 1000
    assert {drawn(native, [1.0, 3.0, 3.0], key, 1.0, 0.0, 0.4) for key in range(50)} == {1}
    assert {drawn(native, [1.0, 3.0, 3.0], key, 1.0, 0.5, 1.0) for key in range(50)} == {1, 2}


def test_a_seed_draws_what_it_draws_without_kernels(native: Any, isa: str) -> None:  # noqa: F811
    import mlx.core as mx

    from lattice_cli.kernels import draws

    rng = np.random.default_rng(3)
    for key in range(150):
        values = rng.normal(size=int(rng.choice([1, 2, 50, 300, 1000]))) * 4
        given = (float(rng.choice([0.5, 1.4])), float(rng.choice([0.0, 0.1])), float(rng.choice([0.5, 0.9, 1.0])))
        want = draws.draw_kept(mx.array(values.astype(np.float32)[None]), mx.random.key(key), *given)
        assert drawn(native, values, key, *given) == want.item(), (len(values), given)


def test_what_is_no_number_never_comes_and_other_arrays_go_to_mlx(native: Any, isa: str) -> None:  # noqa: F811
    import mlx.core as mx

    from lattice_cli.kernels import draws

    nan, inf = float("nan"), float("inf")
    for top_p in (0.5, 1.0):
        assert drawn(native, [nan, 1.0, nan, 3.0] * 200, 1, 9.0, 0.0, top_p) % 4 == 3
        assert drawn(native, [nan, -inf, nan], 1, 1.0, 0.0, top_p) == 0
        assert drawn(native, [1.0, inf, nan, inf], 1, 1.0, 0.0, top_p) == 1
    for logits in (mx.random.normal((3, 70)), mx.random.normal((1, 70)).astype(mx.bfloat16)):
        given = (logits, mx.random.key(5), 1.0, 0.0, 0.9)
        assert mx.array_equal(partial(native.draw_kept, draws.draw_kept)(*given), draws.draw_kept(*given))
    spread = mx.random.normal((1, 2, 300))[:, 1]
    assert native.draw_kept(draws.draw_kept, spread, mx.random.key(5), 1.0, 0.0, 0.9).item() == drawn(
        native, np.array(spread)[0], 5, 1.0, 0.0, 0.9
    )
