"""The real small model: its logits are those of its weights expanded to float32, its answers are kept.

Thread: any
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_cli.conversation import said
from lattice_cli.engine.completion import Completion
from lattice_cli.engine.open import open_engine
from lattice_cli.engine.worker import EngineWorker, new_job_id
from lattice_cli.job import Job, Limits, Sampling
from lattice_cli.model.card import ModelSource
from lattice_cli.model.load import LoadedModel, load
from lattice_cli.model.upstream import file_limit_kept
from lattice_cli.prompt.template import render_chat
from lattice_cli.settings import EngineSettings, Home
from tests.model.gguf_files import deinterleave

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

FIXTURES = Path(__file__).parents[2] / "fixtures"
ANSWERS = [json.loads(line) for line in (FIXTURES / "greedy" / "smollm2-135m.jsonl").read_text().splitlines()]
HEADS, KV_HEADS = 9, 3
MODULES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    root = tmp_path_factory.mktemp("home")
    return Home(root, root / "models")


@pytest.fixture(scope="module")
def smollm2(smollm2_file: Path, home: Home) -> LoadedModel:
    return load(ModelSource("smollm2-135m", smollm2_file, "gguf"), home)


def test_its_steps_are_known_to_the_fused_kernel_of_a_gpu(smollm2_file: Path) -> None:
    from lattice_cli.kernels.cuda_gpu import Gpu, doubt
    from lattice_cli.model.outline import outline

    assert doubt(outline(smollm2_file), Gpu(132, 232_448, (9, 0))) is None


def logits(network: Any, ids: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """(tokens, vocabulary)"""
    import mlx.core as mx

    return np.array(network(mx.array([ids]))[0].astype(mx.float32))


def write_expanded(file: Path, folder: Path) -> Path:
    """The file's weights as a float32 safetensors folder, by the gguf package and this function alone."""
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.numpy import save_file

    weights = {}
    for tensor in GGUFReader(file).tensors:
        dense = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name in TOP:
            weights[TOP[tensor.name]] = dense
            continue
        _, layer, module, _ = tensor.name.split(".")
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(module)
        weights[f"model.layers.{layer}.{MODULES[module]}.weight"] = deinterleave(dense, heads) if heads else dense
    save_file(weights, folder / "model.safetensors")
    config = {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_logits_are_those_of_the_weights_expanded_to_float32(
    smollm2: LoadedModel, smollm2_file: Path, tmp_path: Path
) -> None:
    """Max abs error 2e-3 on logits of standard deviation 7.7, over every position of a prompt.

    The other side is the gguf package's expansion loaded by mlx-lm. On x86 both are seen to be equal bit for
    bit; the bound leaves room for sums in another order. A row out of place costs whole units.
    """
    with file_limit_kept():
        from mlx_lm.utils import load_model

    expanded, _ = load_model(write_expanded(smollm2_file, tmp_path))
    ids = render_chat(smollm2.card, [said("user", "Explain in detail how a steam engine works.")]).ids
    expected = logits(expanded, ids)
    assert np.abs(logits(smollm2.network, ids) - expected).max() < 2e-3
    assert expected.std() > 3


def test_the_card_of_smollm2(smollm2: LoadedModel) -> None:
    card = smollm2.card
    assert (card.format.architecture, card.format.quantization) == ("llama", "Q4_1")
    assert (card.context_tokens, card.end_ids, card.think) == (8192, frozenset({0, 2}), None)
    assert (card.bos_token, card.eos_token, card.notes) == ("<|im_start|>", "<|im_end|>", ())
    assert render_chat(card, [said("user", "Hi")]).text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_greedy_answers_are_the_kept_ones(smollm2_file: Path, home: Home) -> None:
    """All ten at once through the engine, eight rows in a batch, against answers made alone by
    fixtures/make_greedy.py. The least margin of a choice is 0.003, the float error of a batch under 1e-3.
    """
    settings = EngineSettings()
    source = ModelSource("smollm2-135m", smollm2_file, "gguf")
    worker = EngineWorker(lambda: open_engine(source, home, settings), settings)
    worker.start()
    try:
        card = worker.wait_ready(120)
        found = []
        tickets = []
        for answer in ANSWERS:
            prompt = render_chat(card, [said("user", answer["prompt"])])
            assert len(prompt.ids) == answer["prompt_tokens"]
            job = Job(new_job_id(), prompt, Sampling(temperature=0.0), Limits(max_tokens=32))
            tickets.append(worker.submit([job]))
        for ticket in tickets:
            completion = Completion(ticket.jobs[0].id)
            while not ticket.done:
                event = ticket.next(120)
                assert event is not None, "no event in two minutes"
                completion.add(event)
            found.append(completion.answer)
    finally:
        assert worker.stop(30)
    assert found == [answer["text"] for answer in ANSWERS]
    assert ANSWERS[0]["text"] == "The capital of France is Paris."


def test_the_mlx_folder_holds_the_same_weights(smollm2_file: Path, tmp_path: Path) -> None:
    """fixtures/make_mlx_folder.py, the script that comparisons with mlx_lm.server rest on: mlx_lm loads the
    folder, and its answer through its own tokenizer and template begins as ours.
    """
    spec = importlib.util.spec_from_file_location("make_mlx_folder", FIXTURES / "make_mlx_folder.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.main([str(smollm2_file), str(tmp_path / "mlx")]) == 0
    with file_limit_kept():
        from mlx_lm import load as mlx_lm_load

    network, tokenizer = mlx_lm_load(str(tmp_path / "mlx"))
    question = [{"role": "user", "content": ANSWERS[0]["prompt"]}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True)
    assert len(ids) == ANSWERS[0]["prompt_tokens"]
    assert tokenizer.eos_token_ids == {2}
    assert int(logits(network, tuple(ids))[-1].argmax()) == ANSWERS[0]["ids"][0]
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    assert config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        "model.embed_tokens": {"group_size": 32, "bits": 8},
    }
