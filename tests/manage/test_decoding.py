"""What doctor says of the fused steps on an NVIDIA GPU, with stand-ins for the GPU: no weights are read for it.

Thread: any
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.kernels import cuda_gpu, platform
from lattice_cli.kernels.cuda_gpu import Gpu
from lattice_cli.manage.decoding import decoding_line
from lattice_cli.manage.doctor import rows
from lattice_cli.manage.examination import examine
from lattice_cli.settings import Home
from tests.model.gguf_files import write_gguf
from tests.tiny import tiny_config, write_json, write_tiny_folder

pytestmark = pytest.mark.tiny

H200, TURING = Gpu(132, 232_448, (9, 0)), Gpu(40, 65_536, (7, 5))
FUSED = "its steps are fused on the GPU, once they are checked at loading"
WIDE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "num_attention_heads": 2}


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """mlx computes on an H200, as far as it is asked; the fixture changes that."""
    monkeypatch.setattr(platform, "backend_name", lambda: "cuda")
    monkeypatch.setattr(cuda_gpu, "read_gpu", lambda: H200)
    return monkeypatch


def home_at(root: Path, **options: Any) -> Home:
    return Home(root, root / "models", **{"default_model": "tiny", "kernels": "fast", **options})


def write_model(root: Path, *, bits: int | None = None, dtype: str = "bfloat16", **config: Any) -> Home:
    """A folder whose shapes the fused step knows, unless `config` says otherwise."""
    import mlx.core as mx
    from mlx.nn.layers.quantized import quantize
    from mlx.utils import tree_flatten

    from lattice_cli.model.network import empty_network

    folder = write_tiny_folder(root / "models" / "tiny")
    fields = {**tiny_config("llama"), **WIDE, **config}
    network = empty_network(folder, fields)
    network.set_dtype(getattr(mx, dtype))
    if bits:
        fields["quantization"] = {"group_size": 64, "bits": bits}
        quantize(network, 64, bits)
    leaves: Any = tree_flatten(network.parameters())
    mx.save_safetensors(str(folder / "model.safetensors"), dict(leaves), metadata={"format": "mlx"})
    write_json(folder / "config.json", fields)
    return home_at(root)


@pytest.mark.parametrize("bits", [None, 4, 8])
def test_a_model_that_is_known(tmp_path: Path, bits: int | None) -> None:
    found = examine(write_model(tmp_path, bits=bits))
    assert found.ready
    printed = rows(found)
    assert printed[printed.index(("default model", "tiny")) + 1] == ("decoding", FUSED)
    assert json.loads(json.dumps(asdict(found)))["decoding"] == FUSED


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"bits": 3}, "its steps are not fused: 3 bits in groups of 64"),
        ({"dtype": "float32"}, "its steps are not fused: numbers of mlx.core.float32"),
        ({"model_type": "qwen2"}, "its steps are not fused: `qwen2` has no fused step"),
        ({"model_type": "gemma"}, "its steps are not fused: `gemma` has no fused step"),
        ({"hidden_size": 96}, "its steps are not fused: hidden width 96, not a multiple of 64"),
    ],
)
def test_a_model_that_is_not(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    home = write_model(tmp_path, **changes)
    assert decoding_line(home) == line
    assert examine(home).ready, "mlx-lm's own steps serve it"


def test_the_words_are_those_of_loading(tmp_path: Path) -> None:
    from lattice_cli.model.folder import read_config
    from lattice_cli.model.network import load_folder

    home = write_model(tmp_path, bits=3)
    folder = home.models / "tiny"
    assert cuda_gpu.fuse_checked(load_folder(folder, read_config(folder)), H200, []) == decoding_line(home)


def test_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    file = write_gguf(tmp_path / "models" / "tiny" / "tiny.gguf", "llama", "Q4_1")
    assert decoding_line(home_at(tmp_path)) == FUSED
    write_gguf(file, "llama", "Q6_K")
    assert decoding_line(home_at(tmp_path)) == "its steps are not fused: numbers of mlx.core.float32"


def test_a_gpu_that_is_too_old(tmp_path: Path, gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(cuda_gpu, "read_gpu", lambda: TURING)
    line = "the steps are not fused: they need compute capability 8.0"
    assert decoding_line(write_model(tmp_path)) == line
    assert cuda_gpu.fuse_checked(None, TURING, []) == line


def test_a_driver_that_does_not_answer(tmp_path: Path, gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(cuda_gpu, "read_gpu", lambda: None)
    assert decoding_line(write_model(tmp_path)) == "the steps are not fused: the GPU's driver does not answer"


def test_kernels_that_are_switched_off(tmp_path: Path) -> None:
    write_model(tmp_path)
    assert decoding_line(home_at(tmp_path, kernels="off")) == "the steps are not fused: the native kernels are off"


@pytest.mark.parametrize("backend", ["cpu", "metal"])
def test_nothing_is_said_where_there_is_no_such_gpu(tmp_path: Path, gpu: pytest.MonkeyPatch, backend: str) -> None:
    gpu.setattr(platform, "backend_name", lambda: backend)
    found = examine(write_model(tmp_path))
    assert found.decoding is None
    assert "decoding" not in dict(rows(found))


def test_a_scripted_model_has_no_steps(tmp_path: Path) -> None:
    (tmp_path / "replies.json").write_text("{}")
    assert decoding_line(home_at(tmp_path, default_model=f"script:{tmp_path / 'replies.json'}")) is None


# What goes wrong.


def test_no_model_is_there(tmp_path: Path) -> None:
    found = examine(home_at(tmp_path, default_model="smollm2-135m"))
    assert found.decoding == "unknown: `smollm2-135m` is not on this machine"
    assert [each.what for each in found.missing if each.blocks] == [
        "the default model: `smollm2-135m` is not on this machine"
    ]


def test_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    home = write_model(tmp_path)
    config = home.models / "tiny" / "config.json"
    fields = json.loads(config.read_text())
    write_json(config, {**fields, "num_hidden_layers": 3})
    line = decoding_line(home)
    assert line is not None and line.startswith(f"unknown: `{config.parent}` lacks 9 tensors: `model.layers.2.")
    config.write_text("{")
    assert decoding_line(home) == f"unknown: `{config}` is not JSON (line 1)"


@pytest.mark.parametrize("failure", [RuntimeError("no\nway"), AttributeError("self_attn"), MemoryError(), OSError()])
def test_doctor_goes_on_whatever_happens(tmp_path: Path, gpu: pytest.MonkeyPatch, failure: Exception) -> None:
    def fail(*_: object) -> None:
        raise failure

    home = write_model(tmp_path)
    gpu.setattr(cuda_gpu, "doubt", fail)
    found = examine(home)
    assert found.ready
    assert found.decoding is not None and found.decoding.startswith("unknown: ") and "\n" not in found.decoding
