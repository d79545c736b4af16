"""The workbench: networks made up from a config alone, what a step of them must move, mlx-lm's own loop beside ours.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.engine.measure import Workbench
from lattice_cli.errors import UnknownFormat, UsageError
from lattice_cli.job import Job, Limits, Prompt, Sampling
from lattice_cli.kernels import native_choice
from lattice_cli.model.card import ModelSource
from lattice_cli.model.random_weights import RandomModel
from lattice_cli.settings import EngineSettings, Home
from tests.tiny import HEAD_DIM, KV_HEADS, LAYERS, tiny_config, write_tiny_folder

pytestmark = pytest.mark.tiny

ASKED = Job("asked", Prompt(tuple(range(40)), ""), Sampling(temperature=0.0), Limits(8, ignore_end=True))


def config_file(folder: Path, **more: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**tiny_config("llama"), **more}))
    return file


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, tmp_path)


def matrices(config: dict[str, Any]) -> int:
    hidden, heads = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    keys, feed = config["num_key_value_heads"] * config["head_dim"], config["intermediate_size"]
    return int(config["num_hidden_layers"] * hidden * (2 * heads + 2 * keys + 3 * feed))


@pytest.mark.parametrize("model", [{"bits": 4, "group": 32}, {"bits": 8, "group": 32}, {"dtype": "float32"}])
def test_a_config_alone_is_a_model_that_answers(tmp_path: Path, home: Home, model: dict[str, Any]) -> None:
    with Workbench(RandomModel(config_file(tmp_path), **model), home, EngineSettings()) as bench:
        (row,) = bench.run([ASKED])
        weights = bench.weights()
    assert (row.prompt_tokens, row.completion_tokens, len(row.tokens_s)) == (40, 8, 8)
    assert 0 < row.read_s <= row.tokens_s[0] < row.tokens_s[-1]
    assert weights is not None
    config = tiny_config("llama")
    assert weights.layer_weights == matrices(config)
    assert weights.head_weights == config["vocab_size"] * config["hidden_size"]
    assert weights.token_bytes == 2 * LAYERS * KV_HEADS * HEAD_DIM * 4  # keys and values in float32


def test_a_table_that_is_no_head_is_not_moved_in_a_step(tmp_path: Path, home: Home) -> None:
    """Of a table of embeddings a step reads one row; a tied one is the head, and read whole."""
    found = []
    for tied in (False, True):
        model = RandomModel(config_file(tmp_path, tie_word_embeddings=tied), dtype="float32")
        with Workbench(model, home, EngineSettings()) as bench:
            weights = bench.weights()
        assert weights is not None
        found.append(weights)
    table = 4 * found[0].head_weights
    assert found[0].model_bytes - found[0].step_bytes == table
    assert found[1].model_bytes == found[1].step_bytes == found[0].step_bytes


@pytest.mark.parametrize("kernels", ["off", "exact"])
def test_of_experts_only_the_chosen_count(tmp_path: Path, home: Home, kernels: str) -> None:
    """Eight experts of which a token meets two; in mlx-lm's stacks, and packed."""
    cache = Path("~/.cache/lattice-tests").expanduser()  # where compiled kernels stay between runs
    home = Home(cache, cache / "models", kernels=kernels) if kernels != "off" else home
    if kernels != "off" and native_choice.choose(home).module is None:
        pytest.skip(native_choice.choose(home).reason)
    more = {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 1}
    more |= {"mlp_only_layers": [], "moe_intermediate_size": 32, "norm_topk_prob": True}
    model = RandomModel(config_file(tmp_path, **more), dtype="float32")
    with Workbench(model, home, EngineSettings()) as bench:
        weights = bench.weights()
        assert bench.run([ASKED])[0].completion_tokens == 8
    assert weights is not None
    expert = LAYERS * 3 * 64 * 32
    hidden = 64 * (2 * 64 + 2 * 32) * LAYERS
    assert weights.layer_weights == hidden + 64 * 8 * LAYERS + 2 * expert
    spared = weights.model_bytes - weights.step_bytes - 4 * weights.head_weights
    assert spared == pytest.approx(4 * 6 * expert, rel=0.05 if kernels == "exact" else 0)  # packed rows are padded


def test_rows_together_are_measured_each_for_itself(tmp_path: Path, home: Home) -> None:
    jobs = [replace(ASKED, id=str(number), prompt=Prompt(tuple(range(number, 60)), "")) for number in range(3)]
    with Workbench(RandomModel(config_file(tmp_path), group=32), home, EngineSettings()) as bench:
        rows = bench.run(jobs)
    assert [row.prompt_tokens for row in rows] == [60, 59, 58]
    assert [len(row.tokens_s) for row in rows] == [8, 8, 8]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ModelSource]:
    return ModelSource("tiny", write_tiny_folder(tmp_path / "tiny"), "folder")


def test_mlx_lms_own_loop_runs_beside_ours_unpatched(
    folder: ModelSource, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it runs mlx's functions are mlx's own, though ours were in their places before."""
    import mlx.core as mx
    from mlx_lm.models import llama

    from lattice_cli.kernels import install

    original, seen = mx.fast.rms_norm, []
    with Workbench(folder, home, EngineSettings()) as bench:
        before = bench.run([ASKED])
        monkeypatch.setattr(install, "_originals", [(mx.fast, "rms_norm", original)])
        monkeypatch.setattr(mx.fast, "rms_norm", lambda *given: pytest.fail("ours was called"))
        call = llama.Model.__call__
        monkeypatch.setattr(llama.Model, "__call__", lambda *a, **k: (seen.append(mx.fast.rms_norm), call(*a, **k))[1])
        (row,) = bench.run_reference([ASKED])
        several = bench.run_reference([ASKED] * 3)
    assert (row.prompt_tokens, row.completion_tokens, len(before[0].tokens_s)) == (40, 8, 8)
    assert 0 < row.read_s < row.tokens_s[0]
    assert set(seen) == {original} and len(seen) >= 8
    assert [(one.prompt_tokens, len(one.tokens_s)) for one in several] == [(40, 8)] * 3
    assert all(0 < one.read_s <= one.tokens_s[0] < one.tokens_s[-1] for one in several)


def test_a_machine_has_limits_above_0(folder: ModelSource, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    from lattice_cli.engine import measure_limits

    monkeypatch.setattr(measure_limits, "BUFFER_BYTES", 1 << 16)
    monkeypatch.setitem(measure_limits.GEMM_SIZE, "cpu", 32)
    with Workbench(folder, home, EngineSettings()) as bench:
        limits = bench.machine(2)
    assert min(limits.copy_bytes_s, limits.read_bytes_s, limits.gemm_ops_s) > 0


@pytest.mark.parametrize(
    ("content", "error"),
    [("{", UsageError), ("[]", UsageError), ("{}", UsageError), ('{"model_type": "no_such"}', UnknownFormat)],
)
def test_a_config_that_is_none_is_told(tmp_path: Path, home: Home, content: str, error: type[Exception]) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(error), Workbench(RandomModel(file), home, EngineSettings()):
        pass
