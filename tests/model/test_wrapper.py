"""A text model inside a vision wrapper, in each way such checkpoints lie, and the text model saved alone: all compute
the same, and what is left out is said once.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lattice_cli.manage.quantize import choose_packing, quantize
from lattice_cli.model.unused import unused_note
from lattice_cli.settings import Home
from tests.model.goldens import logits_of
from tests.model.test_load import load_tiny, mlx_lm_load
from tests.tiny import tiny_config, write_json, write_tiny_folder

IDS = list(b"hello, world")


def text_alone(name: str) -> str:
    return name.replace("model.language_model.", "model.")


def mlx_vlms(name: str) -> str:
    return name.replace("model.language_model.", "language_model.model.").replace("model.visual.", "vision_tower.")


def older(name: str) -> str:
    return name.replace("model.language_model.", "language_model.model.").replace("model.visual.", "visual.")


WAYS: dict[str, tuple[Callable[[str], str], bool]] = {
    "the hub's": (str, True),
    "mlx-vlm's": (mlx_vlms, True),
    "an older one": (older, True),
    "the text alone": (text_alone, False),
}


def lay(folder: Path, way: str) -> Path:
    rename, wrapped = WAYS[way]
    write_tiny_folder(folder, "qwen3_5")
    weights = load_file(folder / "model.safetensors")
    many = {f"model.visual.blocks.{at}.norm1.weight": np.ones(8, np.float32) for at in range(3)}
    many["mtp.layers.0.mlp.gate_proj.weight"] = np.ones((8, 8), np.float32)
    if not wrapped:
        weights = {name: array for name, array in weights.items() if "visual" not in name and "mtp" not in name}
        many = {}
        config: dict[str, Any] = {**tiny_config("qwen3_5")["text_config"], "architectures": ["Qwen3_5ForCausalLM"]}
        assert config["model_type"] == "qwen3_5_text"
        write_json(folder / "config.json", config)
    save_file({rename(name): array for name, array in (weights | many).items()}, folder / "model.safetensors")
    return folder


@pytest.mark.tiny
@pytest.mark.parametrize("way", WAYS)
def test_a_text_model_is_found_in_its_wrapper(tmp_path: Path, way: str) -> None:
    """Report 118: Qwen3.5's checkpoints bring a vision tower and draft layers. mlx-lm 0.32 does not know the type
    `qwen3_5_text`, under which the text alone is saved.
    """
    plain = load_tiny(write_tiny_folder(tmp_path / "plain", "qwen3_5"))
    model = load_tiny(lay(tmp_path / "way", way))
    assert np.array_equal(logits_of(model.network, IDS), logits_of(plain.network, IDS))
    wrapped = WAYS[way][1]
    assert model.card.notes == (
        ("4 vision tensors and 2 draft tensors left out: text needs none of them",) if wrapped else ()
    )
    assert model.card.context_tokens == 512


@pytest.mark.tiny
@pytest.mark.parametrize("way", WAYS)
def test_mlx_lm_reads_what_quantize_makes_of_it(tmp_path: Path, way: str) -> None:
    """Under a type that it knows; a folder of MLX has nothing left that could be skipped."""
    folder = quantize(
        str(lay(tmp_path / "way", way)), tmp_path / "mlx", choose_packing("mlx", 8, 32), Home(tmp_path, tmp_path)
    )
    theirs = mlx_lm_load(folder)
    model = load_tiny(folder)
    assert np.abs(logits_of(model.network, IDS) - logits_of(theirs, IDS)).max() < 1e-3
    assert model.card.notes == ()


@pytest.mark.pure
@pytest.mark.parametrize(
    ("names", "note"),
    [
        (["model.embed_tokens.weight", "lm_head.weight"], None),
        (["visual.a", "vision_tower.b"], "2 vision tensors left out: text needs none of them"),
        (["mtp.fc.weight"], "1 draft tensor left out: text needs none of them"),
        (["model.visualize.weight", "smtp.fc"], None),
    ],
)
def test_what_is_left_out_is_counted(names: list[str], note: str | None) -> None:
    assert unused_note(names) == note


@pytest.mark.wire
def test_it_is_said_once_on_stderr(tmp_path: Path) -> None:
    folder = lay(tmp_path / "way", "the hub's")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LATTICE_", "HF_"))}
    done = subprocess.run(
        [sys.executable, "-m", "lattice_cli", "chat", "--model", str(folder), "--prompt", "Hi", "--max-tokens", "1"],
        capture_output=True,
        env={**clean, "LATTICE_KERNELS": "off", "LATTICE_HOME": str(tmp_path / "home")},
        timeout=120,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("4 vision tensors and 2 draft tensors left out: text needs none of them") == 1
    assert "tensor" not in done.stdout
