"""The outline of a model on disk is the network that loading would make on a GPU, and costs no reading of weights.

Thread: any
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_cli.errors import BrokenWeights, UnknownFormat
from lattice_cli.model.folder import read_config
from lattice_cli.model.load import open_gguf
from lattice_cli.model.network import empty_network, load_folder
from lattice_cli.model.outline import outline
from lattice_cli.model.precision import follow_matrices
from lattice_cli.model.q4 import load_q4
from tests.model.gguf_files import write_gguf
from tests.model.test_gguf import ARCHITECTURES as GGUF_ARCHITECTURES
from tests.model.test_gguf import EXACT, EXPANDED
from tests.model.test_q4 import ARCHITECTURES, write_q4_folder
from tests.tiny import Architecture, tiny_config, write_json, write_tiny_folder

pytestmark = pytest.mark.tiny

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"


def described(network: Any) -> dict[str, Any]:
    """All that may decide how it is computed, short of numbers."""
    from mlx.utils import tree_flatten

    leaves: Any = tree_flatten(network.parameters())
    found: dict[str, Any] = {name: (array.shape, array.dtype) for name, array in leaves}
    for path, module in network.named_modules():
        layout = [getattr(module, name, None) for name in ("bits", "group_size", "mode")]
        found[f"{path}: module"] = (type(module).__name__, *layout)
    return found


def outlined(path: Path) -> dict[str, Any]:
    """Described; nothing of it may have been evaluated."""
    import mlx.core as mx

    mx.reset_peak_memory()
    before = mx.get_active_memory()
    network = outline(path)
    assert mx.get_peak_memory() - before < 20_000, "numbers and vectors are all right, matrices are not"
    return described(network)


def write_mlx_folder(folder: Path, architecture: Architecture, own: dict[str, Any], **layers: Any) -> Path:
    """A tiny folder as mlx-lm writes quantized ones; `layers` differ from the rest: up_proj={"bits": 8, ...}."""
    import mlx.core as mx
    from mlx.nn.layers.quantized import quantize
    from mlx.utils import tree_flatten

    write_tiny_folder(folder, architecture)
    config: dict[str, Any] = {**tiny_config(architecture), "quantization": dict(own)}
    network = empty_network(folder, config)
    network.set_dtype(mx.bfloat16)

    def layout(path: str, module: Any) -> bool | dict[str, Any]:
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % own["group_size"]:
            return False
        if (name := path.rpartition(".")[2]) in layers:
            config["quantization"][path] = layers[name]
            return dict(layers[name]) if layers[name] else False
        return dict(own)

    quantize(network, class_predicate=layout)
    leaves: Any = tree_flatten(network.parameters())
    mx.save_safetensors(str(folder / "model.safetensors"), dict(leaves), metadata={"format": "mlx"})
    write_json(folder / "config.json", config)
    return folder


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_dense_folder(tmp_path: Path, architecture: Architecture) -> None:
    folder = write_tiny_folder(tmp_path / "tiny", architecture)
    assert outlined(folder) == described(load_folder(folder, read_config(folder)))


@pytest.mark.parametrize(
    ("own", "layers"),
    [
        ({"group_size": 32, "bits": 4}, {}),
        ({"group_size": 64, "bits": 3}, {}),
        ({"group_size": 32, "bits": 4}, {"up_proj": {"group_size": 64, "bits": 8}, "o_proj": False}),
        ({"group_size": 32, "bits": 4, "mode": "mxfp4"}, {}),
    ],
)
@pytest.mark.parametrize("architecture", ["llama", "qwen3_5"])
def test_a_quantized_folder(
    tmp_path: Path, architecture: Architecture, own: dict[str, Any], layers: dict[str, Any]
) -> None:
    folder = write_mlx_folder(tmp_path / "tiny", architecture, own, **layers)
    expected = described(load_folder(folder, read_config(folder)))
    assert any("Quantized" in str(value) for value in expected.values())
    assert outlined(folder) == expected


def test_layers_whose_layout_only_their_shapes_tell(tmp_path: Path) -> None:
    """mlx-lm finds it so where the config says something else, or does not name the layer."""
    folder = write_mlx_folder(tmp_path / "tiny", "llama", {"group_size": 64, "bits": 8})
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, "quantization": {"group_size": 32, "bits": 4}})
    assert outlined(folder) == described(load_folder(folder, read_config(folder)))


@pytest.mark.parametrize("said", [{"quantization": {"group_size": 32, "bits": 4}},
                                  {"quantization_config": {"quant_method": "mxfp4"}}])  # fmt: skip
def test_a_quantization_of_another_kind_is_left_to_mlx_lms_loader(tmp_path: Path, said: dict[str, Any]) -> None:
    folder = write_mlx_folder(tmp_path / "tiny", "llama", {"group_size": 32, "bits": 4, "mode": "mxfp4"})
    write_json(folder / "config.json", {**tiny_config("llama"), **said})
    expected = described(load_folder(folder, read_config(folder)))
    assert any("mxfp4" in str(value) for value in expected.values())
    assert outlined(folder) == expected


def test_a_type_that_mlx_lm_reads_as_another(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    write_json(folder / "config.json", {**tiny_config("llama"), "model_type": "mistral"})
    assert outlined(folder) == described(load_folder(folder, read_config(folder)))


@pytest.mark.parametrize("kind", [*EXACT, *EXPANDED])
def test_a_gguf_file(tmp_path: Path, kind: str) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", "llama", kind)
    _, network, _ = open_gguf(file, None)
    follow_matrices(network)
    assert outlined(file) == described(network)


@pytest.mark.parametrize("architecture", GGUF_ARCHITECTURES)
def test_a_gguf_file_with_factors_for_its_positions(tmp_path: Path, architecture: Any) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", architecture, "Q8_0", rope_factors=np.full(32, 2.0, np.float32))
    _, network, _ = open_gguf(file, None)
    follow_matrices(network)
    expected = described(network)
    assert any("FactoredRope" in str(value) for value in expected.values())
    assert outlined(file) == expected


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_q4_folder(tmp_path: Path, architecture: Architecture) -> None:
    folder = write_q4_folder(write_tiny_folder(tmp_path / "tiny", architecture), tmp_path / "q4")
    assert outlined(folder) == described(load_q4(folder, read_config(folder)))


def write_hollow_folder(folder: Path, config_file: Path) -> Path:
    """A checkpoint of a real model's shapes in bfloat16, its weights a hole in the file."""
    from mlx.utils import tree_flatten

    config = json.loads(config_file.read_text())
    leaves: Any = tree_flatten(empty_network(config_file, config).parameters())
    header, end = {}, 0
    for name, array in leaves:
        header[name] = {"dtype": "BF16", "shape": array.shape, "data_offsets": [end, end + 2 * array.size]}
        end += 2 * array.size
    text = json.dumps({"__metadata__": {"format": "mlx"}, **header}).encode()
    folder.mkdir(parents=True)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    write_json(folder / "config.json", config)
    return folder


def test_a_large_checkpoint_takes_no_longer(tmp_path: Path) -> None:
    """0.8 billion weights: 0.03 s were measured, and the limit leaves a busy machine thirty times that."""
    folder = write_hollow_folder(tmp_path / "large", CONFIGS / "qwen3.5-0.8b.json")
    assert (folder / "model.safetensors").stat().st_size > 1_500_000_000
    began_s = time.perf_counter()
    found = outlined(folder)
    assert time.perf_counter() - began_s < 1
    assert sum(np.prod(value[0]) for name, value in found.items() if ": " not in name) > 750_000_000


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    write_json(folder / "config.json", {**tiny_config("llama"), "hidden_size": 32})
    with pytest.raises(BrokenWeights, match="does not fit its config"):
        outline(folder)
    write_json(folder / "config.json", {**tiny_config("llama"), "model_type": "unheard_of"})
    with pytest.raises(UnknownFormat, match="`unheard_of` is not supported by mlx-lm"):
        outline(folder)
    with pytest.raises(UnknownFormat, match="does not exist"):
        outline(tmp_path / "nothing")
