"""What `lattice quantize` costs a text, beside what mlx_lm.convert costs it: perplexity of smollm2-135m, and of the
Qwen3.5 miniatures, whose random weights know no text, the divergence from float32.

The text is the package's prose.txt, the first chapter of "Alice's Adventures in Wonderland" (Lewis Carroll, 1865;
public domain), abridged. smollm2-135m's own four bits are expanded to float32 first, and count as what was trained.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_cli.bench.prose import paragraphs
from lattice_cli.manage.quantize import choose_packing, quantize
from lattice_cli.model.gguf import gguf_config
from lattice_cli.model.gguf_header import read_header
from lattice_cli.model.side_files import write_gguf_side_files
from lattice_cli.model.upstream import file_limit_kept
from lattice_cli.settings import Home
from tests.model.goldens import MODELS, goldens_of, loaded, logits_of
from tests.model.real import smollm2
from tests.model.test_real import write_expanded

LAYOUTS = [(4, 64), (4, 32), (8, 64), (8, 32)]
TOKENS = 700
NEAR = 0.02  # of mlx-lm's perplexity, or divergence


def log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))  # (tokens, vocabulary)


def ours(source: Path, target: Path, bits: int, group_size: int) -> Path:
    home = Home(target.parent, target.parent, offline=True)
    return quantize(str(source), target, choose_packing("mlx", bits, group_size), home)


def mlx_lms(source: Path, target: Path, bits: int, group_size: int) -> Path:
    """A text model that was saved alone goes by the name that mlx-lm knows it under."""
    with file_limit_kept():
        from mlx_lm import convert

    config = json.loads((source / "config.json").read_text())
    if config["model_type"].endswith("_text"):
        known = target.with_name("known")
        shutil.copytree(source, known)
        (known / "config.json").write_text(
            json.dumps({**config, "model_type": config["model_type"].removesuffix("_text")})
        )
        source = known
    convert(str(source), str(target), quantize=True, q_group_size=group_size, q_bits=bits)
    return target


# A real model.


@pytest.fixture(scope="module")
def expanded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """smollm2-135m in float32, with its tokenizer."""
    file = smollm2()
    folder = write_expanded(file, tmp_path_factory.mktemp("expanded"))
    config = (folder / "config.json").read_text()
    header = read_header(file)
    write_gguf_side_files(header, gguf_config(header), folder)
    (folder / "config.json").write_text(config)
    return folder


def perplexity(folder: Path) -> float:
    with loaded("smollm2", "exact", folder) as model:
        ids = tuple(model.card.tokenizer.encode("\n".join(paragraphs())))[:TOKENS]
        said = log_softmax(logits_of(model.network, ids)[:-1])
        return float(np.exp(-said[np.arange(len(ids) - 1), ids[1:]].mean()))


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("bits", "group_size"), LAYOUTS)
def test_perplexity_is_that_of_mlx_lms_convert(expanded: Path, tmp_path: Path, bits: int, group_size: int) -> None:
    """Within 2%; seen equal to the last digit, for the packed weights are the same bits."""
    found = perplexity(ours(expanded, tmp_path / "ours", bits, group_size))
    wanted = perplexity(mlx_lms(expanded, tmp_path / "theirs", bits, group_size))
    print(f"{bits} bits, groups of {group_size}: {found:.4f}, mlx-lm's {wanted:.4f}")
    assert abs(found / wanted - 1) < NEAR
    assert 5 < found < 60, "a model that reads English"


# Random ones.


def divergence(folder: Path, name: str) -> float:
    """Mean KL divergence from the float32 model, over the longest golden prompt."""
    ids = goldens_of(name)[-1].ids
    with loaded(name, "off") as model:
        wanted = log_softmax(logits_of(model.network, ids))
    with loaded(name, "off", folder) as model:
        found = log_softmax(logits_of(model.network, ids))
    return float((np.exp(wanted) * (wanted - found)).sum(-1).mean())


@pytest.mark.tiny
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "bits", "group_size"),
    [
        ("qwen3_5_moe", 4, 32),
        *(
            pytest.param(name, bits, group_size, marks=pytest.mark.slow)
            for name in ("qwen3_5-0.8b-heads", "qwen3_5-27b-sizes", "qwen3_5_moe")
            for bits, group_size in LAYOUTS
        ),
    ],
)
def test_qwen35_in_few_bits_is_as_far_from_float32_as_mlx_lms(
    tmp_path: Path, name: str, bits: int, group_size: int
) -> None:
    found = divergence(ours(MODELS / name, tmp_path / "ours", bits, group_size), name)
    wanted = divergence(mlx_lms(MODELS / name, tmp_path / "theirs", bits, group_size), name)
    assert abs(found - wanted) <= NEAR * wanted
    assert found > 0
