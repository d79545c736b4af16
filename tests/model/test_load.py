"""Models from folders: the network, what the card says, and one sentence for everything that is wrong.

Thread: any
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lattice_cli.errors import BrokenWeights, LatticeError, ModelError, UnknownFormat, UsageError
from lattice_cli.job import SamplingChoice
from lattice_cli.model.card import ModelFormat, ModelSource
from lattice_cli.model.folder import read_sampling, read_template
from lattice_cli.model.load import LoadedModel, choose_window, load
from lattice_cli.model.precision import packed_note
from lattice_cli.settings import Home
from tests.tiny import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    Architecture,
    tiny_tokenizer,
    write_json,
    write_tiny_folder,
)

ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "qwen3", "qwen3_5")


def load_tiny(folder: Path, **options: Any) -> LoadedModel:
    return load(ModelSource("tiny", folder, "folder"), Home(folder, folder), **options)


def edit(file: Path, **changes: Any) -> None:
    """Change fields of a JSON file; None removes one."""
    fields = json.loads(file.read_text()) if file.is_file() else {}
    write_json(file, {name: value for name, value in {**fields, **changes}.items() if value is not None})


def edit_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def logits(network: Any) -> np.ndarray[Any, Any]:
    """(tokens, vocabulary) of a fixed text."""
    import mlx.core as mx

    return np.array(network(mx.array([list(b"hello, world")]))[0].astype(mx.float32))


def mlx_lm_load(folder: Path) -> Any:
    from lattice_cli.model.upstream import file_limit_kept

    with file_limit_kept():
        from mlx_lm.utils import load_model

    return load_model(folder)[0]


# The network.


@pytest.mark.tiny
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_computes_what_mlx_lm_computes(tmp_path: Path, architecture: Architecture) -> None:
    """Float32 weights are not touched. qwen3_5 brings a vision and an MTP tensor, which are left out with a word."""
    folder = write_tiny_folder(tmp_path, architecture)
    model = load_tiny(folder)
    assert np.array_equal(logits(model.network), logits(mlx_lm_load(folder)))
    assert model.card.format.kind == "hf"
    left_out = "1 vision tensor and 1 draft tensor left out: text needs none of them"
    assert model.card.notes == ((left_out,) if architecture == "qwen3_5" else ())


@pytest.mark.tiny
def test_every_array_is_evaluated_on_the_thread_that_loads(tmp_path: Path) -> None:
    """An array that is not evaluated cannot be read on another thread (`There is no Stream(...)`)."""
    from mlx.utils import tree_flatten

    folder, found = write_tiny_folder(tmp_path, "qwen2"), []
    thread = Thread(target=lambda: found.append(load_tiny(folder)))
    thread.start()
    thread.join(60)
    leaves: Any = tree_flatten(found[0].network.parameters())
    assert sum(np.array(array).nbytes for _, array in leaves) == found[0].nbytes > 0


def write_mlx_folder(folder: Path, architecture: Architecture, *, mode: str = "affine", half: bool = False) -> Path:
    """A tiny folder as mlx_lm.convert would leave it: packed matrices, `quantization` in the config."""
    import mlx.core as mx
    from mlx.nn.layers.quantized import quantize
    from mlx.utils import tree_flatten

    network = mlx_lm_load(write_tiny_folder(folder, architecture))
    if half:
        network.apply(lambda array: array.astype(mx.bfloat16))
    quantize(network, group_size=32, bits=4, mode=mode)
    weights: Any = tree_flatten(network.parameters())
    mx.save_safetensors(str(folder / "model.safetensors"), dict(weights), metadata={"format": "mlx"})
    edit(folder / "config.json", quantization={"group_size": 32, "bits": 4, "mode": mode})
    return folder


def on_cpu() -> bool:
    import mlx.core as mx

    return mx.default_device() == mx.Device(mx.cpu)


@pytest.mark.tiny
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("mode", "half"), [("affine", False), ("affine", True), ("mxfp4", False)])
def test_packed_weights_become_float32_on_a_cpu(
    tmp_path: Path, architecture: Architecture, mode: str, half: bool
) -> None:
    """Linear layers, embedding and tied head: max abs error 1e-4 against the packed network in float32."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    if not on_cpu():
        pytest.skip("packed weights are fast here")
    folder = write_mlx_folder(tmp_path, architecture, mode=mode, half=half)
    model = load_tiny(folder)
    leaves: Any = tree_flatten(model.network.parameters())
    assert {array.dtype for _, array in leaves} == {mx.float32}
    packed = mlx_lm_load(folder)
    packed.apply(lambda array: array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array)
    assert np.abs(logits(model.network) - logits(packed)).max() < 1e-4
    assert (model.card.format.kind, model.card.notes) == ("mlx", ())


@pytest.mark.tiny
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_becomes_float32_on_a_cpu(tmp_path: Path, dtype: str) -> None:
    """Max abs error 1e-4 against the same values stored as float32; in bfloat16, mlx-lm's `1 + norm` of
    Qwen3.5 alone costs 0.07 on these logits.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten

    if not on_cpu():
        pytest.skip("half precision is fast here")
    folder = write_tiny_folder(tmp_path, "qwen3_5")
    weights: Any = mx.load(str(folder / "model.safetensors"))
    halves = {name: array.astype(getattr(mx, dtype)) for name, array in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), halves)
    network = load_tiny(folder).network
    leaves: Any = tree_flatten(network.parameters())
    assert {array.dtype for _, array in leaves} == {mx.float32}
    halved = {name: array.astype(mx.float32) for name, array in halves.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), halved)
    assert np.abs(logits(network) - logits(mlx_lm_load(folder))).max() < 1e-4


@pytest.mark.tiny
def test_weights_are_counted_one_by_one(tmp_path: Path) -> None:
    """Eight 4-bit weights share a 32-bit word: counting words would let a model eat all memory."""
    from lattice_cli.model.precision import parameter_count

    plain = mlx_lm_load(write_tiny_folder(tmp_path / "plain", "qwen2"))
    packed = mlx_lm_load(write_mlx_folder(tmp_path / "packed", "qwen2"))
    weights = load_file(tmp_path / "plain" / "model.safetensors")
    assert parameter_count(plain) == parameter_count(packed) == sum(array.size for array in weights.values())


@pytest.mark.pure
def test_weights_that_need_over_half_of_memory_stay_packed() -> None:
    assert packed_note(1_000_000_000, 8_000_000_000) is None
    assert packed_note(1_000_000_001, 8_000_000_000) == (
        "weights stay packed, which is slow on a CPU: in float32 they would need 4.0 GB, "
        "more than half of the 8.0 GB of memory"
    )


@pytest.mark.tiny
def test_vectors_follow_half_precision_matrices_on_a_gpu() -> None:
    """A float32 norm beside float16 scales would cast every scale in each step."""
    import mlx.core as mx
    from mlx.nn.layers.embedding import Embedding
    from mlx.nn.layers.normalization import RMSNorm
    from mlx.utils import tree_flatten

    from lattice_cli.model.precision import follow_matrices

    network: Any = Embedding(8, 64)
    network.norm = RMSNorm(64)
    follow_matrices(network)
    assert network.norm.weight.dtype == mx.float32, "a float32 network is left alone"
    network.weight = network.weight.astype(mx.float16)
    follow_matrices(network)
    leaves: Any = tree_flatten(network.parameters())
    assert {array.dtype for _, array in leaves} == {mx.float16}


# The card.


@pytest.mark.tiny
def test_the_card_of_a_tiny_folder(tmp_path: Path) -> None:
    card = load_tiny(write_tiny_folder(tmp_path)).card
    nbytes = (tmp_path / "model.safetensors").stat().st_size
    assert card.served_id == "tiny"
    assert card.format == ModelFormat("hf", "llama", "none", 512, nbytes)
    assert card.context_tokens == 512
    assert card.end_ids == {IM_END, END_OF_TEXT}
    assert card.chat_template == CHAT_TEMPLATE
    assert (card.bos_token, card.eos_token) == ("", "<|im_end|>")
    assert card.sampling == SamplingChoice()
    assert card.think == ("<think>", "</think>")


@pytest.mark.tiny
@pytest.mark.parametrize(
    ("config", "generation", "tokenizer"),
    [
        (None, IM_END, None),
        (IM_END, None, None),
        ([IM_END, 7], [8], "<|im_end|>"),
        (None, None, "<|im_end|>"),
        (None, None, None),
    ],
)
def test_end_ids_are_the_union_of_every_file(tmp_path: Path, config: Any, generation: Any, tokenizer: Any) -> None:
    """Report 112: the stop set came from one file only, and generation ran past the end of the turn.

    The control tokens `<|im_end|>` and `<|endoftext|>` end a turn even where no file says so.
    """
    folder = write_tiny_folder(tmp_path)
    edit(folder / "config.json", eos_token_id=config)
    edit(folder / "generation_config.json", eos_token_id=generation)
    edit(folder / "tokenizer_config.json", eos_token=tokenizer)
    named = {i for value in (config, generation) for i in (value if isinstance(value, list) else [value])} - {None}
    assert load_tiny(folder).card.end_ids == {IM_END, END_OF_TEXT} | named


@pytest.mark.tiny
def test_what_generation_config_recommends(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    edit(folder / "generation_config.json", temperature=0.6, top_k=20, top_p=0.95, min_p=0, repetition_penalty=1.05)
    assert load_tiny(folder).card.sampling == SamplingChoice(
        temperature=0.6, top_k=20, top_p=0.95, min_p=0.0, repetition_penalty=1.05
    )


@pytest.mark.pure
@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1), ("temperature", "0.7"), ("top_k", 1.5), ("top_p", 1.5), ("min_p", True), ("top_k", [1])],
)
def test_a_recommendation_out_of_range_names_file_and_value(tmp_path: Path, name: str, value: Any) -> None:
    write_json(tmp_path / "generation_config.json", {name: value})
    with pytest.raises(BrokenWeights) as caught:
        read_sampling(tmp_path)
    assert caught.value.message == (
        f"`{tmp_path / 'generation_config.json'}` sets `{name}` to {json.dumps(value)}, which is no value for it"
    )


@pytest.mark.pure
@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, None),
        ({"tokenizer_config.json": {"chat_template": "A"}}, "A"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "B"}]}}, "B"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "C"}]
                }
            },
            "C",
        ),
        ({"tokenizer_config.json": {"chat_template": [{"name": "rag", "template": "D"}]}}, "D"),
        ({"tokenizer_config.json": {"chat_template": []}, "chat_template.json": {"chat_template": "E"}}, "E"),
        ({"tokenizer_config.json": {"chat_template": "A"}, "chat_template.jinja": "F"}, "F"),
        ({"chat_template.json": {"chat_template": "G"}}, "G"),
    ],
)
def test_the_template_is_found_in_all_its_places(tmp_path: Path, files: dict[str, Any], template: str | None) -> None:
    for name, value in files.items():
        (tmp_path / name).write_text(value if isinstance(value, str) else json.dumps(value))
    assert read_template(tmp_path) == template


@pytest.mark.tiny
def test_token_objects_and_a_tokenizer_without_thinking(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    edit(folder / "tokenizer_config.json", bos_token={"content": "<|im_start|>", "lstrip": False})
    text = (folder / "tokenizer.json").read_text().replace("<think>", "<a>").replace("</think>", "<b>")
    (folder / "tokenizer.json").write_text(text)
    card = load_tiny(folder).card
    assert card.bos_token == "<|im_start|>"
    assert card.think is None
    (folder / "chat_template.jinja").write_text("{{ '<think>' }}{{ content.split('</think>') }}")
    assert load_tiny(folder).card.think == ("<think>", "</think>")


@pytest.mark.tiny
def test_a_tokenizer_folder_replaces_tokenizer_and_template(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "model")
    other = tmp_path / "other"
    other.mkdir()
    tiny_tokenizer().save(str(other / "tokenizer.json"))
    (other / "chat_template.jinja").write_text("other")
    (folder / "tokenizer.json").write_text("broken, and not looked at")
    assert load_tiny(folder, tokenizer_dir=other).card.chat_template == "other"
    (other / "chat_template.jinja").unlink()
    assert load_tiny(folder, tokenizer_dir=other).card.chat_template == CHAT_TEMPLATE


@pytest.mark.pure
def test_the_window_is_lowered_and_never_raised() -> None:
    trained = ModelFormat("hf", "llama", "none", 512, 0)
    assert choose_window(trained, None) == 512
    assert choose_window(trained, 100) == 100
    assert choose_window(trained, 512) == 512
    assert choose_window(ModelFormat("hf", "llama", "none", None, 0), None) == 4096
    with pytest.raises(UsageError) as caught:
        choose_window(trained, 513)
    assert caught.value.message == "`--context` is 513, and the model was trained for 512 tokens"
    with pytest.raises(UsageError):
        choose_window(trained, 0)


# What is wrong.


def unknown_type(folder: Path) -> str:
    edit(folder / "config.json", model_type="warp_drive")
    version = importlib.metadata.version("mlx-lm")
    return f"the model type `warp_drive` is not supported by mlx-lm {version}"


def one_tensor_too_many(folder: Path) -> str:
    edit_weights(folder, lambda weights: weights.update({"model.layers.0.self_attn.k_scale": np.ones(1, np.float32)}))
    return f"`{folder}` has 1 tensor its config has no place for: `model.layers.0.self_attn.k_scale`"


def one_tensor_missing(folder: Path) -> str:
    edit_weights(folder, lambda weights: weights.pop("model.norm.weight"))
    return f"`{folder}` lacks 1 tensor: `model.norm.weight`"


def many_tensors_missing(folder: Path) -> str:
    edit(folder / "config.json", num_hidden_layers=40)
    names = ("input_layernorm", "mlp.down_proj", "mlp.gate_proj")
    first = ", ".join(f"`model.layers.10.{name}.weight`" for name in names)
    return f"`{folder}` lacks 342 tensors: {first}, ..."


def wrong_shape(folder: Path) -> str:
    edit_weights(folder, lambda weights: weights.update({"model.norm.weight": np.ones(7, np.float32)}))
    return f"`{folder}` does not fit its config: `model.norm.weight` is (7,) instead of (64,)"


def missing_field(folder: Path) -> str:
    edit(folder / "config.json", hidden_size=None)
    return (
        f"`{folder}` cannot be loaded by mlx-lm: "
        "ModelArgs.__init__() missing 1 required positional argument: 'hidden_size'"
    )


def own_code(folder: Path) -> str:
    (folder / "x.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    edit(folder / "config.json", model_file="x.py")
    return f'`{folder / "config.json"}` asks to run the folder\'s own code (`model_file` is "x.py"), and we never do'


def broken_tokenizer(folder: Path) -> str:
    (folder / "tokenizer.json").write_text("{")
    return f"`{folder / 'tokenizer.json'}` is no tokenizer we can read: EOF while parsing an object at line 1 column 1"


def broken_generation_config(folder: Path) -> str:
    (folder / "generation_config.json").write_text("{")
    return f"`{folder / 'generation_config.json'}` is not JSON (line 1)"


def truncated_weights(folder: Path) -> str:
    file = folder / "model.safetensors"
    nbytes = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-10])
    return f"`{file}` is cut short: its header asks for {nbytes} bytes and it has {nbytes - 10}"


FAULTS = [
    unknown_type,
    one_tensor_too_many,
    one_tensor_missing,
    many_tensors_missing,
    wrong_shape,
    missing_field,
    own_code,
    broken_tokenizer,
    broken_generation_config,
    truncated_weights,
]


@pytest.mark.tiny
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_one_sentence_that_names_the_file(tmp_path: Path, fault: Callable[[Path], str]) -> None:
    """Reports 117 (unknown type), 118 (hundreds of tensor names) and 143 (a folder's own code)."""
    folder = write_tiny_folder(tmp_path)
    message = fault(folder)
    with pytest.raises(ModelError) as caught:
        load_tiny(folder)
    assert caught.value.message == message
    assert caught.value.exit_code == 3
    assert not (folder / "ran").exists()


@pytest.mark.tiny
def test_code_named_by_auto_map_is_not_run_either(tmp_path: Path) -> None:
    """Report 143, by the other door: transformers' `auto_map` for config and tokenizer."""
    folder = write_tiny_folder(tmp_path)
    (folder / "x.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    own = {"AutoConfig": "x.C", "AutoModelForCausalLM": "x.M", "AutoTokenizer": ["x.T", "x.T"]}
    edit(folder / "config.json", auto_map=own, trust_remote_code=True)
    edit(folder / "tokenizer_config.json", auto_map=own)
    load_tiny(folder)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text("{}")
    with pytest.raises(LatticeError):
        load_tiny(folder)
    assert not (folder / "ran").exists()


@pytest.mark.tiny
@pytest.mark.parametrize(
    "name", ["vision_tower.blocks.0.weight", "model.visual.merger.weight", "multi_modal_projector.w"]
)
def test_vision_weights_are_left_out_for_text(tmp_path: Path, name: str) -> None:
    """Report 118: a checkpoint with a vision tower is good for text."""
    folder = write_tiny_folder(tmp_path)
    before = logits(load_tiny(folder).network)
    edit_weights(folder, lambda weights: weights.update({name: np.ones((4, 4), np.float32)}))
    assert np.array_equal(logits(load_tiny(folder).network), before)


@pytest.mark.wire
def test_knowing_a_format_imports_neither_mlx_nor_transformers() -> None:
    """`lattice models` lists a hundred folders; mlx_lm alone costs two seconds."""
    program = (
        "import sys; import lattice_cli.model.load, lattice_cli.model.gguf, lattice_cli.model.network, "
        "lattice_cli.model.precision, lattice_cli.manage.doctor; "
        "print([name for name in ('mlx.core', 'mlx_lm', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.tiny
def test_a_source_of_an_unknown_kind_of_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match="is not a model folder"):
        load_tiny(tmp_path)
