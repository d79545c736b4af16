"""Folders of `.q4` files: every byte as the format says, every bit kept, one sentence for what is wrong.

The format is written out by hand here, in bytes and in plain loops; nothing of the reader proves the writer.

Thread: any
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lattice_cli.errors import BrokenWeights, ModelError
from lattice_cli.model.card import ModelFormat, ModelSource
from lattice_cli.model.format import read_format
from lattice_cli.model.load import LoadedModel, load
from lattice_cli.model.locate import locate
from lattice_cli.model.q4 import expand_blocks, read_q4_tensor
from lattice_cli.model.q4_header import Q4Tensor, read_index
from lattice_cli.model.q4_writer import encode, file_name, is_quantized, write_index, write_tensor
from lattice_cli.settings import Home
from tests.tiny import Architecture, write_json, write_tiny_folder

ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "qwen3", "qwen3_5")
Array = np.ndarray[Any, Any]


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def write_q4_folder(source: Path, folder: Path) -> Path:
    """A safetensors folder as `quantize_q4` leaves it, with the config and tokenizer that users copy there."""
    folder.mkdir()
    weights = load_file(source / "model.safetensors")
    entries = [write_tensor(folder, name, weights[name].shape, [weights[name].reshape(-1)]) for name in sorted(weights)]
    write_index(folder, entries)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("written")
    return write_q4_folder(write_tiny_folder(made / "tiny"), made / "q4")


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy, and beside it what it was made from: each test may change both."""
    shutil.copytree(written.parent / "tiny", tmp_path / "tiny")
    return shutil.copytree(written, tmp_path / "q4")


def decode(file: Path) -> Array:
    """A file of either kind by the format's description, value by value, in float32."""
    data = file.read_bytes()
    (dimensions,) = struct.unpack_from("<I", data, 8)
    *shape, count = struct.unpack_from(f"<{dimensions + 1}Q", data, 12)
    start = 20 + 8 * dimensions
    if file.suffix == ".f16":
        return np.frombuffer(data, "<f2", count, start).astype(np.float32).reshape(shape)
    values: list[np.float32] = []
    for block in range(start, len(data), 20):
        scale, minimum = (np.float32(half) for half in struct.unpack_from("<2e", data, block))
        for byte in data[block + 4 : block + 20]:
            values += [np.float32(nibble) * scale + minimum for nibble in (byte & 15, byte >> 4)]
    return np.array(values[:count], np.float32).reshape(shape)


# Writing: bytes.


@pytest.mark.pure
def test_a_q4_file_byte_for_byte(tmp_path: Path) -> None:
    """-2 to 5.5 in steps of 0.5, up and down again: scale 0.5, minimum -2, the even element in the low nibble."""
    up = [-2 + 0.5 * i for i in range(16)]
    entry = write_tensor(tmp_path, "model.embed_tokens.weight", (1, 32), [floats(*up, *reversed(up))])
    assert (tmp_path / "model_embed_tokens_weight.q4").read_bytes() == bytes.fromhex(
        "4b485134"  # KHQ4
        "02000000"  # version
        "02000000"  # dimensions
        "0100000000000000 2000000000000000"  # shape
        "2000000000000000"  # count
        "0038"  # 0.5
        "00c0"  # -2
        "1032547698badcfe efcdab8967452301"
    )
    assert (entry.name, entry.file) == ("model.embed_tokens.weight", "model_embed_tokens_weight.q4")
    assert (entry.quantized, entry.shape, entry.numel) == (True, (1, 32), 32)


@pytest.mark.pure
def test_an_f16_file_byte_for_byte(tmp_path: Path) -> None:
    """Rounded to nearest even: 2049 lies between 2048 and 2050; subnormals are kept (2**-24)."""
    write_tensor(tmp_path, "model.norm.weight", (4,), [floats(1, -0.5, 2049, 2**-24)])
    assert (tmp_path / "model_norm_weight.f16").read_bytes() == bytes.fromhex(
        "4b484631 01000000 01000000 0400000000000000 0400000000000000 003c 00b8 0068 0100"
    )


@pytest.mark.pure
def test_the_index_as_serde_prints_it(tmp_path: Path) -> None:
    entries = [
        write_tensor(tmp_path, "lm_head.weight", (1, 2), [floats(0, 1)]),
        write_tensor(tmp_path, "a.A_log", (1,), [floats(1)]),
    ]
    write_index(tmp_path, entries)
    assert (tmp_path / "quantize_index.json").read_text() == (
        '[\n  {\n    "name": "lm_head.weight",\n    "file": "lm_head_weight.q4",\n    "quantized": true,\n'
        '    "shape": [\n      1,\n      2\n    ],\n    "numel": 2\n  },\n'
        '  {\n    "name": "a.A_log",\n    "file": "a_A_log.f16",\n    "quantized": false,\n'
        '    "shape": [\n      1\n    ],\n    "numel": 1\n  }\n]'
    )


def block(scale: float, minimum: float, codes: str) -> bytes:
    return struct.pack("<2e", scale, minimum) + bytes.fromhex(codes)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        pytest.param(floats(*[0.25] * 32), block(1, 0.25, "00" * 16), id="equal weights have scale 1"),
        pytest.param(floats(*[0.0] * 32), block(1, 0, "00" * 16), id="zeros too"),
        pytest.param(
            floats(0, 15, 0.5, 1.5, 2.5, 0.49999997, 14.5, 14.499999, *[0] * 24),
            block(1, 0, "f021 03ef" + "00" * 12),
            id="halves are rounded away from zero, and only halves",
        ),
        pytest.param(
            # scale is 0.66675 in float32 and 0.66699 in f16: 6.335 steps over it are 9.5013 and 9.498
            floats(0, 10.00125, 6.335, *[0] * 29),
            block(0.66675, 0, "f00a" + "00" * 14),
            id="codes are chosen by the scale before it is rounded",
        ),
        pytest.param(floats(1, 2, 1.4), block(1 / 15, 1, "f006" + "00" * 14), id="padding is not in the range"),
        pytest.param(
            # 0.1 / scale is 1.5 in float32, and 0.1 * (1 / scale) is 1.4999999
            floats(0, 1, 0.1, *[0] * 29),
            block(1 / 15, 0, "f001" + "00" * 14),
            id="the scale's inverse multiplies",
        ),
        pytest.param(floats(-2, -1), block(1 / 15, -2, "f0" + "ff" * 15), id="padding above the range is held at 15"),
        pytest.param(floats(7), block(1, 7, "00" * 16), id="one weight"),
    ],
)
def test_the_arithmetic_of_a_block(weights: Array, expected: bytes) -> None:
    assert encode(weights, "w").tobytes() == expected


@pytest.mark.pure
@pytest.mark.parametrize("spread", [1e-7, 1e-3, 0.05, 1.0, 3000.0])
def test_blocks_are_those_of_the_rule_in_a_plain_loop(spread: float) -> None:
    """Every operation in float32 and in this order, as the Rust engine does it, on 31 weights more than 8 blocks."""
    rng = np.random.default_rng(7)
    weights = (rng.standard_normal(8 * 32 + 31) * spread + rng.standard_normal() * spread).astype(np.float32)
    one, expected = np.float32(1), b""
    for start in range(0, len(weights), 32):
        real = weights[start : start + 32]
        low, high = min(real), max(real)
        scale = (high - low) / np.float32(15)
        inverse, codes = one / scale, []
        for weight in [*real, *[np.float32(0)] * (32 - len(real))]:
            step = (weight - low) * inverse
            whole = np.trunc(step)
            away = whole + np.sign(step) if abs(step - whole) >= np.float32(0.5) else whole
            codes.append(int(min(max(away, 0), 15)))
        expected += struct.pack("<2e", np.float16(scale), np.float16(low))
        expected += bytes(even | odd << 4 for even, odd in zip(codes[::2], codes[1::2], strict=True))
    assert encode(weights, "w").tobytes() == expected


@pytest.mark.pure
def test_a_file_in_chunks_is_the_same_file(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal(3 * 64 + 5).astype(np.float32)
    names = ("whole", "chunks")
    for name, cuts in zip(names, ([], [64, 128, 192]), strict=True):
        (tmp_path / name).mkdir()
        write_tensor(tmp_path / name, "x.weight", (197,), np.split(weights, cuts))
    whole, chunks = ((tmp_path / name / "x_weight.q4").read_bytes() for name in names)
    assert whole == chunks


@pytest.mark.pure
@pytest.mark.parametrize(
    ("value", "what"),
    [(np.nan, "is not a finite number"), (np.inf, "is not a finite number"), (-7e4, "is too large for half precision")],
)
@pytest.mark.parametrize("name", ["x.weight", "x.bias"])
def test_a_weight_that_cannot_be_held_is_refused(tmp_path: Path, value: float, what: str, name: str) -> None:
    """A NaN would leave minimum and maximum as they are: wrong numbers without an error."""
    with pytest.raises(BrokenWeights) as caught:
        write_tensor(tmp_path, name, (3,), [floats(1, value, 2)])
    assert caught.value.message == f"a weight of `{name}` {what}, and cannot be quantized"


# Writing: names.


@pytest.mark.pure
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("model.layers.0.self_attn.q_proj.weight", "model_layers_0_self_attn_q_proj_weight.q4"),
        ("model.language_model.layers.0.linear_attn.in_proj_a.weight", None),
        ("model.language_model.layers.0.linear_attn.in_proj_qkv.weight", None),
        ("model.language_model.layers.0.mlp.experts.gate_up_proj", None),
        ("model.language_model.layers.0.mlp.shared_expert_gate.weight", None),
        ("lm_head.weight", "lm_head_weight.q4"),
        ("mtp.fc.weight", "mtp_fc_weight.q4"),
        ("model.visual.blocks.0.norm1.weight", None),
        ("odd name/ü-1.weight", "odd_name_ü-1_weight.q4"),
    ],
)
def test_what_is_in_four_bits(name: str, file: str | None) -> None:
    assert is_quantized(name)
    assert file_name(name) == file or file is None


@pytest.mark.pure
@pytest.mark.parametrize(
    "name",
    [
        "model.norm.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.language_model.layers.0.linear_attn.A_log",
        "model.language_model.layers.0.linear_attn.dt_bias",
        "model.language_model.layers.0.linear_attn.conv1d.weight",
        "mtp.pre_fc_norm_hidden.weight",
    ],
)
def test_what_stays_in_half_precision(name: str) -> None:
    assert not is_quantized(name)
    assert file_name(name).endswith(".f16")


@pytest.mark.pure
def test_qwen3_5_is_divided_as_the_rust_engine_divides_it() -> None:
    """Qwen3.5-0.8B has 488 tensors, of which its `quantize_q4` reports 271 quantized and 217 kept."""
    linear = [f"linear_attn.in_proj_{part}.weight" for part in ("qkv", "z", "a", "b")]
    linear += [
        f"linear_attn.{part}" for part in ("out_proj.weight", "conv1d.weight", "norm.weight", "A_log", "dt_bias")
    ]
    full = [f"self_attn.{part}.weight" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")]
    both = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
    names = ["model.language_model.embed_tokens.weight", "model.language_model.norm.weight"]
    for layer in range(24):
        parts = [*(full if layer % 4 == 3 else linear), *(f"{part}.weight" for part in both)]
        names += [f"model.language_model.layers.{layer}.{part}" for part in parts]
    names += [f"mtp.layers.0.{part}" for part in (*full, *(f"{part}.weight" for part in both))]
    names += [f"mtp.{part}.weight" for part in ("fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")]
    vision = [f"blocks.{layer}.{part}" for layer in range(12) for part in ("norm1", "norm2", "attn.qkv", "attn.proj")]
    vision += [f"blocks.{layer}.mlp.linear_fc{part}" for layer in range(12) for part in (1, 2)]
    vision += ["patch_embed.proj", "merger.norm", "merger.linear_fc1", "merger.linear_fc2"]
    names += [f"model.visual.{part}.{kind}" for part in vision for kind in ("weight", "bias")]
    names.append("model.visual.pos_embed.weight")
    quantized = sum(map(is_quantized, names))
    assert (len(names), quantized, len(names) - quantized) == (488, 271, 217)


# Reading: bits.


def stored(folder: Path, name: str, weights: Array) -> Q4Tensor:
    """A tensor written to a folder of its own and found again through its index."""
    write_index(folder, [write_tensor(folder, name, weights.shape, [weights.reshape(-1)])])
    (tensor,) = read_index(folder)
    return tensor


def random(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.tiny
@pytest.mark.parametrize("spread", [1e-6, 0.02, 30.0])
def test_packed_matrices_are_mlx_groups_with_the_very_same_bits(tmp_path: Path, spread: float) -> None:
    """mlx's expansion in float32 equals nibble * scale + minimum of the file, bit for bit."""
    import mlx.core as mx

    tensor = stored(tmp_path, "x.q_proj.weight", random(48, 96) * np.float32(spread))
    arrays = read_q4_tensor(tensor, float32=True)
    assert {name: (array.dtype, array.shape) for name, array in arrays.items()} == {
        "x.q_proj.weight": (mx.uint32, (48, 12)),
        "x.q_proj.scales": (mx.float16, (48, 3)),
        "x.q_proj.biases": (mx.float16, (48, 3)),
    }
    weight, scales, biases = arrays.values()
    expanded = mx.dequantize(
        weight, scales.astype(mx.float32), biases.astype(mx.float32), group_size=32, bits=4, mode="affine"
    )
    assert np.array_equal(np.array(expanded), decode(tensor.path))


@pytest.mark.tiny
@pytest.mark.parametrize(
    ("name", "shape"),
    [("x.weight", (5, 33)), ("x.weight", (3, 4, 32)), ("x.weight", (70,)), ("mlp.experts.down_proj", (2, 8, 32))],
)
def test_what_mlx_cannot_pack_is_expanded(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    """Rows that are no whole groups, more or fewer dimensions than two, and what is no module's weight."""
    import mlx.core as mx

    tensor = stored(tmp_path, name, random(*shape))
    (dense,) = read_q4_tensor(tensor, float32=True).values()
    assert np.array_equal(np.array(dense), decode(tensor.path))
    (half,) = read_q4_tensor(tensor, float32=False).values()
    assert (half.dtype, half.shape) == (mx.float16, shape)


@pytest.mark.pure
def test_blocks_of_the_symmetric_kind_expand_by_the_same_formula() -> None:
    """QuaRot's: minimum is -8 times the scale, so code 8 is zero."""
    blocks = np.frombuffer(block(0.125, -1, "80" + "f8" * 15), np.uint8)[None]
    assert expand_blocks(blocks, 4).tolist() == [-1.0, 0.0, 0.0, 0.875]


def load_folder(folder: Path, **options: Any) -> LoadedModel:
    return load(ModelSource("tiny", folder, "folder"), Home(folder, folder), **options)


def logits(network: Any) -> Array:
    import mlx.core as mx

    return np.array(network(mx.array([list(b"hello, world")]))[0].astype(mx.float32))


def assert_equal_logits(found: LoadedModel, expected: LoadedModel) -> None:
    """Bit for bit on a CPU, where both compute in float32; elsewhere packed layers round differently."""
    import mlx.core as mx

    ours, theirs = logits(found.network), logits(expected.network)
    if mx.default_device() == mx.Device(mx.cpu):
        assert np.array_equal(ours, theirs)
    else:
        assert np.abs(ours - theirs).max() < 0.05
    assert theirs.std() > 0.5


def write_expanded(folder: Path, target: Path) -> Path:
    """The same weights as a float32 safetensors folder, by this file's decoder."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.q4", "*.f16", "quantize_index.json"))
    index = json.loads((folder / "quantize_index.json").read_text())
    save_file({entry["name"]: decode(folder / entry["file"]) for entry in index}, target / "model.safetensors")
    return target


@pytest.mark.tiny
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_computes_what_its_expanded_weights_compute(tmp_path: Path, architecture: Architecture) -> None:
    """qwen3_5 lies under its checkpoint's names, with a vision and an MTP tensor, which are left out."""
    folder = write_q4_folder(write_tiny_folder(tmp_path / "tiny", architecture), tmp_path / "q4")
    model = load_folder(folder)
    assert_equal_logits(model, load_folder(write_expanded(folder, tmp_path / "expanded")))
    left_out = "1 vision tensor and 1 draft tensor left out: text needs none of them"
    unused = left_out if architecture == "qwen3_5" else None
    nbytes = read_format(folder).nbytes
    assert model.card.format == ModelFormat("q4", architecture, "4-bit group 32", 512, nbytes, unused)
    assert model.card.notes == ((unused,) if unused else ())
    assert model.card.end_ids == {256, 258}
    files = {file for file in folder.iterdir() if file.suffix in (".q4", ".f16")}
    assert model.card.format.nbytes == sum(file.stat().st_size for file in files)


@pytest.mark.tiny
def test_a_head_that_is_tied_to_the_embedding_is_left_out(tmp_path: Path) -> None:
    """Some checkpoints hold it all the same; mlx-lm drops its weight and not what belongs to that."""
    source = write_tiny_folder(tmp_path / "tiny", "qwen3")
    weights = load_file(source / "model.safetensors")
    save_file(weights | {"lm_head.weight": random(261, 64)}, source / "model.safetensors")
    folder = write_q4_folder(source, tmp_path / "q4")
    assert "lm_head.weight" in {tensor.name for tensor in read_index(folder)}
    assert_equal_logits(load_folder(folder), load_folder(write_expanded(folder, tmp_path / "expanded")))


@pytest.mark.tiny
def test_another_folders_tokenizer_serves_where_there_is_none(folder: Path, tmp_path: Path) -> None:
    """What users of the Rust engine do: its `quantize_q4` copies no tokenizer."""
    (folder / "tokenizer.json").unlink()
    assert load_folder(folder, tokenizer_dir=tmp_path / "tiny").card.tokenizer.encode("Hi") == [72, 105]


# Reading: folders.


@pytest.mark.pure
def test_the_index_may_be_an_object(folder: Path) -> None:
    """`quantize_quarot` writes one, with its seed beside the tensors."""
    file, before = folder / "quantize_index.json", read_index(folder)
    write_json(file, {"tensors": json.loads(file.read_text()), "quarot_seed": "0x2a"})
    assert read_index(folder) == before


@pytest.mark.pure
def test_files_that_the_index_does_not_name_are_left_alone(folder: Path) -> None:
    """`merged_qkvz_0_96_64.q4`: what the Rust engine makes of two tensors on its first load."""
    before = read_format(folder)
    (folder / "merged_qkvz_0_96_64.q4").write_bytes(b"KHQ4, and cut short")
    assert read_format(folder) == before


@pytest.mark.pure
def test_safetensors_win_over_q4_files_and_these_over_gguf(folder: Path, tmp_path: Path) -> None:
    (folder / "x.gguf").write_bytes(b"GGUF")
    home = Home(tmp_path, tmp_path)
    assert read_format(folder).kind == "q4"
    assert locate(str(folder), home) == ModelSource("q4", folder, "folder")
    shutil.copy(tmp_path / "tiny" / "model.safetensors", folder)
    assert read_format(folder).kind == "hf"


# What is wrong.

HEAD = "lm_head_weight.q4"
NORM = "model_norm_weight.f16"
AGAIN = "quantize the model again with `lattice quantize`"
Fault = Callable[[Path], tuple[str, str | None]]


def patch(file: Path, at: int, data: bytes) -> None:
    content = bytearray(file.read_bytes())
    content[at : at + len(data)] = data
    file.write_bytes(content)


def no_config(folder: Path) -> tuple[str, str | None]:
    (folder / "config.json").unlink()
    hint = "copy config.json and the tokenizer from the model this one was made of"
    return f"`{folder / 'config.json'}` is missing", hint


def no_index(folder: Path) -> tuple[str, str | None]:
    (folder / "quantize_index.json").unlink()
    return f"`{folder / 'quantize_index.json'}` is missing", AGAIN


def index_no_json(folder: Path) -> tuple[str, str | None]:
    (folder / "quantize_index.json").write_text("[{")
    return f"`{folder / 'quantize_index.json'}` is not JSON (line 1)", "fetch the file again"


def index_without_tensors(folder: Path) -> tuple[str, str | None]:
    (folder / "quantize_index.json").write_text('{"quarot_seed": 1}')
    return f"`{folder / 'quantize_index.json'}` lists no tensors", AGAIN


def entry_without_file(folder: Path) -> tuple[str, str | None]:
    (folder / "quantize_index.json").write_text('[{"name": "x"}]')
    return f"`{folder / 'quantize_index.json'}` is damaged: its entry 1 has no `name` and `file`", AGAIN


def file_outside(folder: Path) -> tuple[str, str | None]:
    (folder / "quantize_index.json").write_text('[{"name": "x", "file": "../x.q4"}]')
    where = folder / "quantize_index.json"
    return f"`{where}` names `../x.q4`, which is no `.q4` or `.f16` file of this folder", None


def file_missing(folder: Path) -> tuple[str, str | None]:
    (folder / HEAD).unlink()
    return f"`{folder / 'quantize_index.json'}` names `{HEAD}`, which is missing", AGAIN


def version_1(folder: Path) -> tuple[str, str | None]:
    patch(folder / HEAD, 4, b"\x01")
    return f"`{folder / HEAD}` is version 1 of its format, and we read version 2", AGAIN


def norm_version_2(folder: Path) -> tuple[str, str | None]:
    patch(folder / NORM, 4, b"\x02")
    return f"`{folder / NORM}` is version 2 of its format, and we read version 1", AGAIN


def bad_magic(folder: Path) -> tuple[str, str | None]:
    patch(folder / HEAD, 0, b"GGUF")
    return f"`{folder / HEAD}` does not begin with `KHQ4`", AGAIN


def other_kind(folder: Path) -> tuple[str, str | None]:
    shutil.copy(folder / HEAD, folder / NORM)
    return f"`{folder / NORM}` does not begin with `KHF1`", AGAIN


def cut_in_blocks(folder: Path) -> tuple[str, str | None]:
    whole = (folder / HEAD).read_bytes()
    (folder / HEAD).write_bytes(whole[:-1])
    size = 36 + 261 * 2 * 20
    return f"`{folder / HEAD}` is cut short: its header asks for {size} bytes and it has {size - 1}", AGAIN


def cut_in_halves(folder: Path) -> tuple[str, str | None]:
    (folder / NORM).write_bytes((folder / NORM).read_bytes()[:-2])
    return f"`{folder / NORM}` is cut short: its header asks for 156 bytes and it has 154", AGAIN


def cut_in_header(folder: Path) -> tuple[str, str | None]:
    (folder / HEAD).write_bytes((folder / HEAD).read_bytes()[:30])
    return f"`{folder / HEAD}` is cut short: it ends within its header", AGAIN


def empty(folder: Path) -> tuple[str, str | None]:
    (folder / HEAD).write_bytes(b"")
    return f"`{folder / HEAD}` is cut short: it ends within its header", AGAIN


def many_dimensions(folder: Path) -> tuple[str, str | None]:
    patch(folder / HEAD, 8, b"\xff\xff\xff\xff")
    return f"`{folder / HEAD}` is damaged: it claims 4294967295 dimensions", AGAIN


def wrong_count(folder: Path) -> tuple[str, str | None]:
    patch(folder / HEAD, 28, (261 * 64 - 1).to_bytes(8, "little"))
    return f"`{folder / HEAD}` is damaged: its shape (261, 64) does not hold 16703 weights", AGAIN


def no_weights(folder: Path) -> tuple[str, str | None]:
    patch(folder / HEAD, 12, bytes(8))
    patch(folder / HEAD, 28, bytes(8))
    return f"`{folder / HEAD}` is damaged: its shape (0, 64) does not hold 0 weights", AGAIN


FAULTS: list[Fault] = [
    no_config,
    no_index,
    index_no_json,
    index_without_tensors,
    entry_without_file,
    file_outside,
    file_missing,
    version_1,
    norm_version_2,
    bad_magic,
    other_kind,
    cut_in_blocks,
    cut_in_halves,
    cut_in_header,
    empty,
    many_dimensions,
    wrong_count,
    no_weights,
]


@pytest.mark.pure
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_one_sentence_that_names_the_file(folder: Path, fault: Fault) -> None:
    """Found in headers, before any weight is read: the same sentence for `lattice models` and a load.

    A missing config made the Rust engine take another model's (its issue 923).
    """
    expected = fault(folder)
    with pytest.raises(ModelError) as caught:
        read_format(folder)
    assert (caught.value.message, caught.value.hint) == expected
    assert caught.value.exit_code == 3


@pytest.mark.tiny
def test_a_missing_tokenizer_is_told_before_weights_are_read(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BrokenWeights) as caught:
        load_folder(folder)
    file = folder / "tokenizer.json"
    assert caught.value.message == f"`{file}` is missing, and there is no `tokenizer.model` or `vocab.json` either"
    assert caught.value.hint == "fetch the model again, or name a folder that has one with `--tokenizer-dir`"


@pytest.mark.tiny
def test_a_tensor_that_is_not_in_the_index_is_named(folder: Path) -> None:
    index = [entry for entry in json.loads((folder / "quantize_index.json").read_text()) if entry["file"] != NORM]
    write_json(folder / "quantize_index.json", index)
    with pytest.raises(BrokenWeights) as caught:
        load_folder(folder)
    assert caught.value.message == f"`{folder}` lacks 1 tensor: `model.norm.weight`"
