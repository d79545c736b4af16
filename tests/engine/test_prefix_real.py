"""The prefix cache on the real small model: every bit as without it.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.kernels import install, native_choice
from lattice_cli.model.card import ModelSource
from lattice_cli.model.load import load
from lattice_cli.settings import Home
from tests.engine.conversations import Meeting, alone
from tests.engine.test_backend import CARD
from tests.engine.test_backend_kernels import CACHE
from tests.model.real import smollm2

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

# 200 conversations are 50 meetings of four clients.
MEETINGS = [pytest.param(seed, marks=[pytest.mark.slow] if seed >= 1 else []) for seed in range(50)]


@pytest.fixture(scope="module")
def file() -> Path:
    return smollm2()


@pytest.fixture(scope="module", params=["exact", pytest.param("fast", marks=pytest.mark.slow)])
def network(request: pytest.FixtureRequest, file: Path) -> Iterator[Any]:
    home = Home(CACHE, CACHE / "models", kernels=request.param)
    found = native_choice.choose(home)
    if found.module is None:
        pytest.skip(found.reason)
    loaded = load(ModelSource("smollm2-135m", file, "gguf"), home)
    install.put_functions(found.module)
    yield loaded.network
    install.take_functions()


@pytest.mark.parametrize("seed", MEETINGS)
def test_every_answer_has_the_bits_of_a_fresh_engine(network: Any, seed: int) -> None:
    """Reports 67 and 68: a wrong token is a failure even where the text looks fine."""
    answers = Meeting(network, CARD, seed, longest=450, tokens=49_000, little=40_000_000).run()
    for answer in answers:
        cold = alone(network, CARD, answer.prompt, 12)
        assert answer.ids == cold.ids[: len(answer.ids)]
        assert answer.logprobs == cold.logprobs[: len(answer.ids)]
    assert sum(answer.cached for answer in answers) > sum(len(answer.prompt.ids) for answer in answers) / 10
