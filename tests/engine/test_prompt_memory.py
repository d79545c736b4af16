"""What reading a prompt takes beside the caches: never the logits of all its positions.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from lattice_cli.model.upstream import file_limit_kept
from tests.engine.test_backend import GREEDY, job, run

pytestmark = pytest.mark.tiny

CHUNK, VOCABULARY = 128, 20_000


@pytest.fixture(scope="module")
def network() -> Any:
    """Small but for its vocabulary: the logits of one chunk are 10 MB, ten times its weights."""
    with file_limit_kept():
        from mlx_lm.models import llama
    mx.random.seed(3)
    args = llama.ModelArgs(
        model_type="llama",
        hidden_size=16,
        num_hidden_layers=2,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
    )
    model = llama.Model(args)
    mx.eval(model.parameters())
    return model


def peak_bytes(network: Any, tokens: int) -> int:
    run(network, job("warm", range(tokens), GREEDY, 1), chunk=CHUNK)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    run(network, job("measured", range(tokens), GREEDY, 1), chunk=CHUNK)
    return mx.get_peak_memory() - before


def test_a_prompt_just_under_a_chunk_takes_no_more_than_a_longer_one(network: Any) -> None:
    """Report 104: logits were computed for every position of a prompt just under the chunk's size."""
    peaks = [peak_bytes(network, tokens) for tokens in (CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK)]
    logits = CHUNK * VOCABULARY * 4
    assert max(peaks) < logits / 2
    assert all(peak <= peaks[-1] * 1.1 + (1 << 18) for peak in peaks)
    mx.eval(network(mx.arange(CHUNK)[None]))  # and the measure would have seen it
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(network(mx.arange(CHUNK)[None]))
    assert mx.get_peak_memory() - before >= logits
