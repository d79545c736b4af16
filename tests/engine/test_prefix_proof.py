"""Proof that the prefix cache changes no token: random conversations of four clients, each answer compared with that
of a fresh engine.

On the native kernels not a bit differs, whatever was reused. mlx's own path adds up in an order that depends on chunks,
so there a token may differ where the two likeliest are closer together than float error.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lattice_cli.kernels import fused, install, native_choice
from lattice_cli.model.upstream import file_limit_kept
from lattice_cli.settings import Home
from tests.engine.conversations import Answer, Meeting, alone
from tests.engine.test_backend import CARD
from tests.engine.test_backend_kernels import CACHE
from tests.tiny import write_tiny_folder

# 200 conversations are 50 meetings of four clients.
MEETINGS = [pytest.param(seed, marks=[pytest.mark.slow] if seed >= 3 else []) for seed in range(50)]
ERROR = 1e-3  # of float32 logits on mlx's path, with room: 2e-5 was seen

pytestmark = [pytest.mark.tiny, pytest.mark.timeout(300)]


def load(folder: Path, architecture: Any) -> Any:
    with file_limit_kept():
        from mlx_lm.utils import load_model
    return load_model(write_tiny_folder(folder, architecture))[0]


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(tmp_path_factory.mktemp("tiny") / request.param, request.param)


@pytest.fixture(scope="module", params=["llama-exact", "qwen3_5-exact", "llama-fast", "qwen3_5-fast"])
def native(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    architecture, kernels = request.param.split("-")
    found = native_choice.choose(Home(CACHE, CACHE / "models", kernels=kernels))
    if found.module is None:
        pytest.skip(found.reason)
    from mlx.nn import quantize

    model = load(tmp_path_factory.mktemp("tiny") / request.param, architecture)
    quantize(model, 32, 4, class_predicate=lambda _, m: hasattr(m, "to_quantized") and m.weight.shape[-1] % 32 == 0)
    install.pack_modules(model, found.module, exact=kernels == "exact")
    assert fused.fuse(model, found.module, half=kernels == "fast") is None
    install.put_functions(found.module)
    yield model
    install.take_functions()


@pytest.mark.parametrize("seed", MEETINGS)
def test_native_kernels_give_every_bit_they_would_without_a_cache(native: Any, seed: int) -> None:
    """Reports 67 and 68: nothing drifts, whatever was edited, branched, interleaved or cancelled."""
    answers = Meeting(native, CARD, seed, longest=450).run()
    for answer in answers:
        cold = alone(native, CARD, answer.prompt, 12)
        assert answer.ids == cold.ids[: len(answer.ids)]
        assert answer.logprobs == cold.logprobs[: len(answer.ids)]
    assert sum(answer.cached for answer in answers) > sum(len(answer.prompt.ids) for answer in answers) / 10


@pytest.mark.parametrize("seed", MEETINGS)
def test_mlx_path_gives_every_token_that_is_clear(plain: Any, seed: int) -> None:
    """Reports 67 and 68, on mlx-lm's own caches."""
    answers = Meeting(plain, CARD, seed, longest=450).run()
    for answer in answers:
        check_clear(plain, answer, alone(plain, CARD, answer.prompt, 12))
    assert sum(answer.cached for answer in answers) > sum(len(answer.prompt.ids) for answer in answers) / 10


def check_clear(network: Any, answer: Answer, cold: Answer) -> None:
    """Equal up to a place where two tokens are as likely as each other, within the error."""
    for place, (one, other) in enumerate(zip(answer.ids, cold.ids, strict=False)):
        if one != other:
            ids = (*answer.prompt.ids, *answer.ids[:place])
            logits = network(mx.array([ids]))[0, -1]
            assert abs(float(logits[one] - logits[other])) < ERROR, f"place {place}: {one} is not {other}"
            return
        assert answer.logprobs[place] == pytest.approx(cold.logprobs[place], abs=ERROR)
