"""Scores of a prompt against a direct forward pass of a tiny model, and the memory they take.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from lattice_cli.engine import logprobs
from lattice_cli.engine.engine import Engine
from lattice_cli.engine.mlx_backend import MlxBackend
from lattice_cli.events import Scored, TokenScore
from lattice_cli.job import ScoreJob
from lattice_cli.model.card import ModelCard, ModelFormat
from lattice_cli.model.upstream import file_limit_kept
from lattice_cli.settings import EngineSettings
from tests.engine.letters import LetterTokenizer
from tests.engine.test_scoring import run
from tests.tiny import VOCABULARY, write_tiny_folder

pytestmark = pytest.mark.tiny

CARD = ModelCard("tiny", ModelFormat("hf", "llama", "none", 512, 0), LetterTokenizer(), 512, frozenset())


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with file_limit_kept():
        from mlx_lm.utils import load_model
    model, _ = load_model(write_tiny_folder(tmp_path_factory.mktemp("tiny") / request.param, request.param))
    return model


@pytest.mark.parametrize("top", [0, 1, 5, 500])
@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_a_prompts_scores_are_those_of_one_forward_pass(network: Any, chunk: int, top: int) -> None:
    ids = tuple(range(20, 60))
    logits = network(mx.array([ids[:-1]]))[0]
    expected = (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).tolist()
    runs = Engine(CARD, MlxBackend(network, 8, chunk), EngineSettings())
    runs.score(ScoreJob("s", ids, top))
    (scored,) = run(runs)
    assert isinstance(scored, Scored)
    assert scored.scores[0] == bytes([20]) and len(scored.scores) == len(ids)
    for place, (token, score) in enumerate(zip(ids[1:], scored.scores[1:], strict=True)):
        assert isinstance(score, TokenScore)
        assert (score.token_id, score.data) == (token, chr(token).encode())
        assert score.logprob == pytest.approx(expected[place][token], abs=1e-4)
        best = sorted(range(VOCABULARY), key=lambda token, place=place: -expected[place][token])[:top]
        assert [data for data, _ in score.top] == [chr(token).encode() for token in best]
        assert [value for _, value in score.top] == pytest.approx([expected[place][token] for token in best], abs=1e-4)


def test_a_chunk_is_as_short_as_a_wide_vocabulary_needs(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 64 MB of logits exist at a time, whatever the prompt: here with a limit of ten tokens' logits."""
    lengths: list[int] = []

    class Watched:
        def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
            lengths.append(inputs.shape[1])
            return network(inputs, cache=cache)

        def __getattr__(self, name: str) -> Any:
            return getattr(network, name)

    monkeypatch.setattr(logprobs, "LOGITS_BYTES", VOCABULARY * 4 * 10)
    monkeypatch.setattr(logprobs, "PIECE_BYTES", VOCABULARY * 4 * 3)
    runs = Engine(CARD, MlxBackend(Watched(), 8, 512), EngineSettings())
    runs.score(ScoreJob("s", tuple(range(40)), 2))
    (scored,) = run(runs)
    assert isinstance(scored, Scored) and len(scored.scores) == 40
    assert lengths == [1, 10, 10, 10, 8]
