"""GGUF files give the logits of the same weights read by mlx-lm, for every architecture and type.

Thread: any
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_cli.errors import BrokenWeights, ModelError, UnknownFormat
from lattice_cli.model.card import ModelSource
from lattice_cli.model.gguf_header import read_header
from lattice_cli.model.gguf_tokenizer import build_tokenizer, gguf_end_ids, gguf_template, gguf_token
from lattice_cli.model.load import LoadedModel, load
from lattice_cli.settings import Home
from tests.model.gguf_files import (
    TOKENS,
    WIDTH,
    Architecture,
    change_config,
    write_gguf,
)

EXACT = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0")
EXPANDED = ("Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "qwen3")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home", tmp_path / "home" / "models")


def logits(network: Any, tokens: int = 24) -> np.ndarray[Any, Any]:
    """(tokens, vocabulary) for a fixed text; long enough that a wrong rotation shows."""
    import mlx.core as mx

    ids = mx.array([[(7 * i * i + 3 * i) % 250 for i in range(tokens)]])
    return np.array(network(ids)[0].astype(mx.float32))


def load_file(file: Path, home: Home) -> LoadedModel:
    return load(ModelSource("tiny", file, "gguf"), home)


def reference(folder: Path) -> Any:
    """The float32 folder through mlx-lm's loader alone; nothing of ours."""
    from lattice_cli.model.upstream import file_limit_kept

    with file_limit_kept():
        from mlx_lm.utils import load_model

    return load_model(folder)[0]


@pytest.mark.tiny
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", EXACT)
def test_logits_equal_those_of_the_weights_expanded_to_float32(
    tmp_path: Path, home: Home, architecture: Architecture, kind: str
) -> None:
    """Max abs error 1e-4 on logits of standard deviation 1.5; on x86 they are seen to be equal bit for bit.

    A query row out of place, a nibble swapped or a scale misread is off by more than 0.1. On a CPU both
    compute in float32; the expansion is the gguf package's own.
    """
    file = write_gguf(tmp_path / "tiny.gguf", architecture, kind, twin=tmp_path / "twin")
    model = load_file(file, home)
    expected = logits(reference(tmp_path / "twin"))
    assert np.abs(logits(model.network) - expected).max() < 1e-4
    assert expected.std() > 0.5
    assert model.card.notes == ()


@pytest.mark.tiny
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", EXPANDED)
def test_other_types_are_quantized_again_to_8_bit_with_one_note(
    tmp_path: Path, home: Home, architecture: Architecture, kind: str
) -> None:
    """Root mean square error under 6% of the logits': what 8 bit in groups of 64 costs random weights.

    Up to 3.8% is seen. A block misread gives over 100%.
    """
    file = write_gguf(tmp_path / "tiny.gguf", architecture, kind, twin=tmp_path / "twin")
    model = load_file(file, home)
    expected = logits(reference(tmp_path / "twin"))
    error = np.sqrt(np.mean((logits(model.network) - expected) ** 2)) / np.sqrt(np.mean(expected**2))
    assert error < 0.06
    assert model.card.notes == (f"{kind} weights of `tiny.gguf` were quantized again to 8 bit",)
    assert model.card.format.quantization == kind


@pytest.mark.tiny
@pytest.mark.parametrize("kind", EXPANDED)
def test_weights_quantized_again_are_off_by_one_step_at_most(tmp_path: Path, kind: str) -> None:
    """Against the gguf package's expansion, weight by weight. mlx keeps zero exact, which costs the far end a step."""
    import mlx.core as mx
    from gguf import GGUFReader
    from gguf.quants import dequantize

    from lattice_cli.model.gguf_tensors import read_tensor

    file = write_gguf(tmp_path / "tiny.gguf", "qwen2", kind)
    header = read_header(file)
    theirs = {tensor.name: tensor for tensor in GGUFReader(file).tensors}
    for tensor in header.tensors:
        if len(tensor.shape) != 2:
            continue
        arrays = read_tensor(header, tensor)
        weight, scales, biases = arrays["weight"], arrays["scales"], arrays["biases"]
        found = np.array(mx.dequantize(weight, scales, biases, group_size=64, bits=8))
        exact = dequantize(theirs[tensor.name].data, theirs[tensor.name].tensor_type)
        step = np.abs(np.repeat(np.array(scales), 64, axis=1))
        assert (np.abs(found - exact) <= step + 1e-6).all(), tensor.name


@pytest.mark.tiny
@pytest.mark.parametrize("kind", ["F32", "F16", "Q4_0", "Q4_1", "Q8_0"])
def test_arrays_equal_those_of_mlx_bit_for_bit(tmp_path: Path, kind: str) -> None:
    """The types mlx stores itself: the same codes, scales and biases as `mx.load`."""
    import mlx.core as mx

    from lattice_cli.model.gguf_tensors import read_tensor

    file = write_gguf(tmp_path / "tiny.gguf", "llama", kind)
    theirs: Any = mx.load(str(file))
    header = read_header(file)
    ours = {}
    for tensor in header.tensors:
        for name, array in read_tensor(header, tensor).items():
            ours[tensor.name.removesuffix("weight") + name] = array
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype, name
        assert mx.array_equal(array, theirs[name]).item(), name


@pytest.mark.tiny
def test_packed_weights_compute_the_same_as_float32_ones(tmp_path: Path) -> None:
    """Where float32 does not fit in memory the packed network runs. Max abs error 2e-2: float16 embeddings."""
    from lattice_cli.model.gguf import read_gguf
    from lattice_cli.model.network import build_network

    file = write_gguf(tmp_path / "tiny.gguf", "qwen2", "Q4_1", twin=tmp_path / "twin")
    model = read_gguf(read_header(file))
    network = build_network(file, model.config, model.weights, model.quantization)
    assert set(model.quantization["model.layers.1.mlp.up_proj"].items()) == {("group_size", 32), ("bits", 4)}
    assert np.abs(logits(network) - logits(reference(tmp_path / "twin"))).max() < 2e-2


# Metadata.


@pytest.mark.tiny
def test_llama_3_factors_turn_positions_as_its_formula_does(tmp_path: Path, home: Home) -> None:
    """rope_freqs.weight, as convert_hf_to_gguf.py writes it, against mlx-lm's own Llama 3 scaling."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    wavelengths = 2 * np.pi * 10000.0 ** (np.arange(0, WIDTH, 2) / WIDTH)
    low, high = 64 / 1.0, 64 / 4.0
    smooth = (64 / wavelengths - 1.0) / (4.0 - 1.0)
    medium = 1 / ((1 - smooth) / 8.0 + smooth)
    factors = np.where(wavelengths < high, 1.0, np.where(wavelengths > low, 8.0, medium))
    assert len(set(np.round(factors, 3))) > 3, "all three ranges are met"
    file = write_gguf(tmp_path / "tiny.gguf", "llama", "F32", rope_factors=factors, twin=tmp_path / "twin")
    plain = logits(reference(tmp_path / "twin"), 128)
    scaled = logits(reference(change_config(tmp_path / "twin", rope_scaling=scaling)), 128)
    found = logits(load_file(file, home).network, 128)
    assert np.abs(found - scaled).max() < 1e-3
    assert np.abs(found - plain).max() > 0.1


@pytest.mark.tiny
@pytest.mark.parametrize(
    ("metadata", "scaling"),
    [
        ({"qwen2.rope.scaling.type": "linear", "qwen2.rope.scaling.factor": 4.0}, {"type": "linear", "factor": 4.0}),
        ({"qwen2.rope.scale_linear": 2.0}, {"type": "linear", "factor": 2.0}),
        (
            {
                "qwen2.rope.scaling.type": "yarn",
                "qwen2.rope.scaling.factor": 4.0,
                "qwen2.rope.scaling.original_context_length": 128,
            },
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        ),
        ({"qwen2.rope.scaling.type": "none"}, None),
    ],
)
def test_scaled_positions(tmp_path: Path, home: Home, metadata: dict[str, Any], scaling: dict[str, Any] | None) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", "qwen2", "F32", metadata=metadata, twin=tmp_path / "twin")
    expected = logits(reference(change_config(tmp_path / "twin", rope_scaling=scaling)), 64)
    assert np.abs(logits(load_file(file, home).network, 64) - expected).max() < 1e-4


@pytest.mark.tiny
def test_a_llama_with_attention_biases(tmp_path: Path, home: Home) -> None:
    """Biases of queries and keys are in ggml's order too; the output projection may have none."""
    file = write_gguf(tmp_path / "tiny.gguf", "llama", "F32", attention_bias=True, twin=tmp_path / "twin")
    twin = change_config(tmp_path / "twin", attention_bias=True)
    from safetensors.numpy import load_file as read
    from safetensors.numpy import save_file

    weights = read(twin / "model.safetensors")
    weights |= {f"model.layers.{i}.self_attn.o_proj.bias": np.zeros(256, np.float32) for i in range(2)}
    save_file(weights, twin / "model.safetensors")
    assert np.abs(logits(load_file(file, home).network) - logits(reference(twin))).max() < 1e-4


@pytest.mark.pure
def test_the_tokenizer_is_rebuilt_from_metadata(tmp_path: Path) -> None:
    header = read_header(write_gguf(tmp_path / "tiny.gguf", "qwen2", "F32"))
    tokenizer = build_tokenizer(header)
    text = "<|im_start|>that\u00e9 a<think>x</think><|im_end|>"
    start, end, opening, closing = (
        TOKENS.index(token) for token in ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
    )
    body = [TOKENS.index("th"), ord("a"), ord("t"), *"\u00e9".encode(), TOKENS.index("\u0120a")]
    ids = [start, *body, opening, ord("x"), closing, end]
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == "that\u00e9 a<think>x</think>"
    assert gguf_end_ids(header.metadata) == {end}
    assert (gguf_token(header, "bos"), gguf_token(header, "eos")) == ("<|im_start|>", "<|im_end|>")
    assert gguf_template(header.metadata) == "{{ messages[0]['content'] }}"


@pytest.mark.tiny
def test_the_card_of_a_gguf_file(tmp_path: Path, home: Home) -> None:
    """Report 112: `<|endoftext|>` ends a turn although the metadata names `<|im_end|>` alone."""
    card = load_file(write_gguf(tmp_path / "tiny.gguf", "llama", "Q8_0"), home).card
    assert card.end_ids == {TOKENS.index("<|im_end|>"), TOKENS.index("<|endoftext|>")}
    assert card.think == ("<think>", "</think>")
    assert card.context_tokens == 512
    assert (card.bos_token, card.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert card.chat_template == "{{ messages[0]['content'] }}"


# Texts whose pieces tell the pre-tokenizers apart: digits, contractions, runs of spaces, line ends, scripts.
TEXTS = (
    "It's 12345 o'clock, WE'LL see   twice\n\n\tand  again \n end",
    "caf\u00e9 na\u00efve \u65e5\u672c\u8a9e 99\u00b2 \U0001f600!?...",
)
PIECES = {
    "gpt-2": ["It", "'s", " 12345", " o", "'", "clock", ",", " WE", "'", "LL", " see", "  ", " twice"],
    "smollm": [
        "It",
        "'s",
        " ",
        "1",
        "2",
        "3",
        "4",
        "5",
        " o",
        "'",
        "clock",
        ",",
        " WE",
        "'",
        "LL",
        " see",
        "  ",
        " twice",
    ],
    "llama-bpe": ["It", "'s", " ", "123", "45", " o", "'clock", ",", " WE", "'LL", " see", "  ", " twice"],
    "qwen2": ["It", "'s", " ", "1", "2", "3", "4", "5", " o", "'clock", ",", " WE", "'LL", " see", "  ", " twice"],
}


@pytest.mark.pure
@pytest.mark.parametrize("pre", PIECES)
def test_each_pre_tokenizer_splits_as_its_name_says(tmp_path: Path, pre: str) -> None:
    """A wrong split gives other ids than the model was trained on, and answers that are only a little worse."""
    tokenizer = build_tokenizer(read_header(write_gguf(tmp_path / "tiny.gguf", "qwen2", "F32", pre=pre)))
    assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == list(TEXTS)
    assert tokenizer.pieces(TEXTS[0])[: len(PIECES[pre])] == PIECES[pre]


@pytest.mark.pure
@pytest.mark.parametrize(
    ("model", "pre", "named"),
    [("gpt2", "deepseek-r1-qwen", "pre-tokenizer `deepseek-r1-qwen`"), ("llama", "default", "tokenizer `llama`")],
)
def test_other_tokenizers_are_refused_by_name(tmp_path: Path, model: str, pre: str, named: str) -> None:
    header = read_header(write_gguf(tmp_path / "tiny.gguf", "qwen2", "F32", pre=pre))
    header.metadata["tokenizer.ggml.model"] = model  # type: ignore[index]
    with pytest.raises(UnknownFormat) as caught:
        build_tokenizer(header)
    assert caught.value.message == (f"`{header.path}` has {named}, and we rebuild only gpt-2, smollm, llama-bpe, qwen2")
    assert caught.value.hint == "name a folder with the model's tokenizer.json with `--tokenizer-dir`"


@pytest.mark.tiny
def test_a_tokenizer_folder_stands_in_for_one_that_cannot_be_rebuilt(tmp_path: Path, home: Home) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", "qwen2", "F32", pre="strange", twin=tmp_path / "twin")
    model = load(ModelSource("tiny", file, "gguf"), home, tokenizer_dir=tmp_path / "twin")
    assert model.card.tokenizer.encode("a") == [97]


@pytest.mark.pure
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", "gemma3", "is a `gemma3` model, and GGUF is read for llama, qwen2, qwen3 only"),
        ("llama.expert_count", 8, "is a mixture of experts"),
        ("llama.rope.scaling.type", "longrope", "scales its positions by `longrope`"),
        ("llama.rope.dimension_count", 32, "has heads of an uncommon shape (64 wide, 32 rotated)"),
        ("llama.block_count", None, "its `llama.block_count` is missing"),
        ("llama.attention.head_count", [4, 4], "its `llama.attention.head_count` is not one number"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(tmp_path: Path, key: str, value: Any, message: str) -> None:
    """Half-understood metadata would give a model that answers nonsense."""
    from lattice_cli.model.gguf import gguf_config

    header = read_header(write_gguf(tmp_path / "tiny.gguf", "llama", "F32"))
    changed: Any = header.metadata
    changed[key] = value
    if value is None:
        del changed[key]
    with pytest.raises(ModelError) as caught:
        gguf_config(header)
    assert message in caught.value.message
    assert f"`{header.path}`" in caught.value.message


@pytest.mark.tiny
def test_a_tensor_that_is_not_there_is_counted_and_named(tmp_path: Path, home: Home) -> None:
    """Report 118."""
    from lattice_cli.model.gguf import read_gguf
    from lattice_cli.model.network import build_network

    model = read_gguf(read_header(write_gguf(tmp_path / "tiny.gguf", "qwen3", "F32")))
    del model.weights["model.layers.0.self_attn.q_norm.weight"]
    with pytest.raises(BrokenWeights) as caught:
        build_network(tmp_path / "tiny.gguf", model.config, model.weights, model.quantization)
    assert caught.value.message == (
        f"`{tmp_path / 'tiny.gguf'}` lacks 1 tensor: `model.layers.0.self_attn.q_norm.weight`"
    )
