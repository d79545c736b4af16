"""`lattice quantize`: from every format into both, whole or not at all.

Thread: any
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lattice_cli.errors import BrokenWeights, ModelError, UnknownFormat, UsageError
from lattice_cli.manage.quantize import choose_packing, fresh_folder, quantize
from lattice_cli.model.card import ModelFormat, ModelSource
from lattice_cli.model.format import read_format
from lattice_cli.model.load import LoadedModel, load
from lattice_cli.model.q4 import expand_blocks
from lattice_cli.model.q4_header import Q4Tensor, read_index
from lattice_cli.model.upstream import file_limit_kept
from lattice_cli.settings import Home
from tests.model.gguf_files import write_gguf
from tests.model.real import smollm2
from tests.tiny import Architecture, tiny_weights, write_tiny_folder

ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "qwen3", "qwen3_5")
LATTICE = [sys.executable, "-m", "lattice_cli"]
Array = np.ndarray[Any, Any]
Target = Literal["q4", "mlx"]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home", tmp_path / "home" / "models", offline=True)


def made(source: Path, target: Path, home: Home, kind: Target, bits: int | None = None, group: int | None = 32) -> Path:
    return quantize(str(source), target, choose_packing(kind, bits, group), home)


def load_path(path: Path, home: Home) -> LoadedModel:
    return load(ModelSource("tiny", path, "gguf" if path.suffix == ".gguf" else "folder"), home)


def logits(network: Any) -> Array:
    import mlx.core as mx

    return np.array(network(mx.array([list(b"hello, world")]))[0].astype(mx.float32))


def mlx_lm_load(folder: Path) -> Any:
    with file_limit_kept():
        from mlx_lm.utils import load_model

    return load_model(folder)[0]


def parameters(network: Any) -> dict[str, Array]:
    """Every parameter by its name; bfloat16 as its bits."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    leaves: Any = tree_flatten(network.parameters())
    return {name: np.array(a.view(mx.uint16) if a.dtype == mx.bfloat16 else a) for name, a in leaves}


def assert_same(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert np.array_equal(found[name], array), name


def read_expanded(tensor: Q4Tensor) -> Array:
    """The values of a `.q4` folder's tensor; tests/model/test_q4.py proves the expansion."""
    raw = np.fromfile(tensor.path, np.uint8)[tensor.offset :]
    if not tensor.packed:
        return raw.view(np.float16).astype(np.float32).reshape(tensor.shape)
    return expand_blocks(raw.reshape(-1, 20), prod(tensor.shape)).reshape(tensor.shape)


def similarity(found: Any, expected: Any) -> float:
    """The correlation of two networks' logits."""
    return float(np.corrcoef(logits(found).reshape(-1), logits(expected).reshape(-1))[0, 1])


def left_behind(folder: Path) -> list[str]:
    """Names in `folder`, hidden ones too."""
    return sorted(path.name for path in folder.iterdir())


def halve(folder: Path) -> Path:
    """The folder's weights in bfloat16."""
    import mlx.core as mx

    file = folder / "model.safetensors"
    weights: Any = mx.load(str(file))
    mx.save_safetensors(str(file), {name: array.astype(mx.bfloat16) for name, array in weights.items()})
    return folder


# MLX folders.


@pytest.mark.tiny
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (8, 64)])
def test_an_mlx_folder_is_what_mlx_lm_makes(
    tmp_path: Path, home: Home, architecture: Architecture, bits: int, group_size: int, capsys: Any
) -> None:
    """Read by mlx-lm's own loader, every parameter equals those of its own `quantize_model`, bit for bit.

    Rows of 96 are no whole groups of 64 and stay as they are; so do norms and the convolution.
    """
    source = halve(write_tiny_folder(tmp_path / "tiny", architecture))
    folder = made(source, tmp_path / "mlx", home, "mlx", bits, group_size)
    said = capsys.readouterr()
    network = mlx_lm_load(folder)
    with file_limit_kept():
        from mlx_lm.utils import load_config, quantize_model

    expected, config = quantize_model(mlx_lm_load(source), load_config(source), group_size, bits)
    assert_same(parameters(network), parameters(expected))
    assert load_config(folder) == config
    assert said.out == ""
    assert said.err.splitlines()[-1].startswith(f"`{folder}` is mlx in {bits}-bit group {group_size}: ")
    assert similarity(load_path(folder, home).network, network) > 0.99


@pytest.mark.tiny
def test_a_large_model_is_written_in_shards(tmp_path: Path, home: Home) -> None:
    """The same weights in several files with an index, named as the hub's tools expect."""
    from lattice_cli.model import mlx_writer
    from lattice_cli.model.dense import network_weights

    whole = made(write_tiny_folder(tmp_path / "tiny"), tmp_path / "mlx", home, "mlx")
    folder = tmp_path / "shards"
    folder.mkdir()
    shutil.copy(whole / "config.json", folder)
    weights = network_weights(tmp_path / "tiny", mlx_lm_load(tmp_path / "tiny"))
    common = {"group_size": 32, "bits": 4}
    packed = mlx_writer.packed_modules(mlx_lm_load(tmp_path / "tiny"), common)
    sizes: list[int] = []
    mlx_writer.write_shards(folder, weights, packed, None, sizes.append, shard_bytes=20_000)
    shards = sorted(file.name for file in folder.glob("*.safetensors"))
    assert shards == [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    assert 2 < len(shards) < len(sizes)
    assert set(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values()) == set(shards)
    assert_same(parameters(mlx_lm_load(folder)), parameters(mlx_lm_load(whole)))
    assert read_format(folder).kind == "mlx"


# Folders of `.q4` files.


@pytest.mark.tiny
def test_a_q4_folder_holds_every_tensor_of_the_checkpoint(tmp_path: Path, home: Home) -> None:
    """Vision and MTP too: the Rust engine uses both. Names, shapes and order are the checkpoint's."""
    source = write_tiny_folder(tmp_path / "tiny", "qwen3_5")
    folder = made(source, tmp_path / "q4", home, "q4")
    index = json.loads((folder / "quantize_index.json").read_text())
    weights = tiny_weights("qwen3_5")
    assert [(entry["name"], tuple(entry["shape"])) for entry in index] == [
        (name, weights[name].shape) for name in sorted(weights)
    ]
    files = {entry["file"] for entry in index} | {"quantize_index.json"}
    beside = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert set(left_behind(folder)) == files | beside
    assert json.loads((folder / "config.json").read_text()) == json.loads((source / "config.json").read_text())
    assert left_behind(tmp_path) == ["q4", "tiny"]


@pytest.mark.tiny
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_weight_is_further_off_than_half_a_step(tmp_path: Path, home: Home, architecture: Architecture) -> None:
    """Each weight of each block against the source's, with room for rounding scale and minimum to 11 bits."""
    source = write_tiny_folder(tmp_path / "tiny", architecture)
    folder = made(source, tmp_path / "q4", home, "q4")
    weights = load_file(source / "model.safetensors")
    for tensor in read_index(folder):
        wanted, found = weights[tensor.name], read_expanded(tensor)
        if tensor.packed:
            blocks = np.abs(found - wanted).reshape(-1, 32)[: wanted.size // 32]
            spread = np.ptp(wanted.reshape(-1)[: blocks.size].reshape(-1, 32), axis=1)
            room = (np.abs(wanted).max() + spread) / 2**11
            assert (blocks.max(axis=1) <= spread / 30 + room).all(), tensor.name
        else:
            assert np.array_equal(found, wanted.astype(np.float16).astype(np.float32)), tensor.name


@pytest.mark.tiny
@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_of_mlx_gets_its_checkpoints_names_back(tmp_path: Path, home: Home, packed: bool) -> None:
    """mlx-lm renames Qwen3.5's tensors, adds 1 to its norms and turns its convolution; the Rust engine knows the
    checkpoint's form. 8-bit sources cost little: norms within 1e-3, and the form of everything is exact.
    """
    source = write_tiny_folder(tmp_path / "tiny", "qwen3_5")
    if packed:
        between = made(source, tmp_path / "mlx", home, "mlx", 8)
    else:
        between = tmp_path / "mlx"
        shutil.copytree(source, between)
        save_file(parameters(mlx_lm_load(source)), between / "model.safetensors", metadata={"format": "mlx"})
    folder = made(between, tmp_path / "q4", home, "q4")
    direct = made(source, tmp_path / "direct", home, "q4")
    text = {file.name for file in direct.iterdir() if not file.name.startswith(("mtp_", "model_visual_"))}
    assert set(left_behind(folder)) == text
    for name in sorted(text):
        assert (folder / name).stat().st_size == (direct / name).stat().st_size or name.endswith(".json"), name
        if name.endswith(".f16"):
            ours, theirs = (np.frombuffer((path / name).read_bytes()[-32:], "<f2") for path in (folder, direct))
            assert np.abs(ours - theirs).max() < 1e-3, name
    config = json.loads((folder / "config.json").read_text())
    assert config == json.loads((source / "config.json").read_text())
    assert similarity(load_path(folder, home).network, load_path(direct, home).network) > 0.98


# GGUF files and other packed sources.


@pytest.mark.tiny
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["F16", "Q4_1", "Q8_0", "Q6_K"])
def test_a_gguf_file_goes_into_both_formats(
    tmp_path: Path, home: Home, architecture: Any, kind: str, capsys: Any
) -> None:
    """With llama's rotated rows in order, or the tokens would not be alike; 4 bits cost these random weights much."""
    file = write_gguf(tmp_path / "tiny.gguf", architecture, kind, attention_bias=architecture == "llama")
    expected = load_path(file, home)
    for target, bits, bound in (("q4", 4, 0.9), ("mlx", 8, 0.999)):
        folder = made(file, tmp_path / target, home, target, bits)
        model = load_path(folder, home)
        assert similarity(model.network, expected.network) > bound
        for text in ("the <|im_end|>", "a the\n\n12"):
            assert model.card.tokenizer.encode(text) == expected.card.tokenizer.encode(text)
        for field in ("chat_template", "end_ids", "context_tokens", "bos_token", "eos_token", "think"):
            assert getattr(model.card, field) == getattr(expected.card, field), field
        note = capsys.readouterr().err.splitlines()[0]
        assert note == f"`tiny` is in {kind}: it is expanded first, and what it lost stays lost"


@pytest.mark.tiny
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["F16", "Q4_1", "Q5_0", "Q8_0", "Q6_K"])
def test_a_gguf_file_gives_the_bytes_that_its_expanded_weights_give(
    tmp_path: Path, home: Home, architecture: Any, kind: str
) -> None:
    """The other side is a float32 safetensors folder, expanded by the gguf package alone."""
    file = write_gguf(tmp_path / "tiny.gguf", architecture, kind, twin=tmp_path / "twin")
    folder = made(file, tmp_path / "q4", home, "q4")
    twin = made(tmp_path / "twin", tmp_path / "q4-twin", home, "q4")
    names = {tensor.path.name for tensor in read_index(twin)}
    assert {tensor.path.name for tensor in read_index(folder)} == names
    assert [name for name in sorted(names) if (folder / name).read_bytes() != (twin / name).read_bytes()] == []


@pytest.mark.tiny
def test_rotary_factors_have_no_place_outside_gguf(tmp_path: Path, home: Home) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", "llama", "F16", rope_factors=np.ones(32, np.float32))
    with pytest.raises(UnknownFormat) as caught:
        made(file, tmp_path / "q4", home, "q4")
    message = f"`{file}` brings a factor for each rotary frequency, which only a GGUF file can hold"
    assert caught.value.message == message
    assert left_behind(tmp_path) == ["tiny.gguf"]


@pytest.mark.tiny
@pytest.mark.parametrize("architecture", ["llama", "qwen3_5"])
def test_a_q4_folder_becomes_an_mlx_folder(tmp_path: Path, home: Home, architecture: Architecture) -> None:
    """In 8 bits nothing more is lost to speak of; half precision, as the scales of the source."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    source = made(write_tiny_folder(tmp_path / "tiny", architecture), tmp_path / "q4", home, "q4")
    folder = made(source, tmp_path / "mlx", home, "mlx", 8)
    network = mlx_lm_load(folder)
    leaves: Any = tree_flatten(network.parameters())
    assert {array.dtype for _, array in leaves} == {mx.uint32, mx.float16}
    assert similarity(load_path(folder, home).network, load_path(source, home).network) > 0.999
    with pytest.raises(UnknownFormat) as caught:
        made(source, tmp_path / "again", home, "q4")
    assert caught.value.message == f"`{source}` is a `.q4` folder already"


# Whole or not at all.


@pytest.mark.pure
@pytest.mark.parametrize("there", ["file", "folder", "full folder", "dangling link"])
def test_nothing_is_overwritten(tmp_path: Path, home: Home, there: str) -> None:
    """Said before the source is looked for, let alone pulled."""
    target = tmp_path / "target"
    if there == "file":
        target.write_text("mine")
    elif there == "dangling link":
        target.symlink_to(tmp_path / "nowhere")
    else:
        target.mkdir()
        if there == "full folder":
            (target / "mine").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError) as caught:
        made(tmp_path / "absent", target, home, "q4")
    assert caught.value.message == f"`{target}` exists, and nothing is overwritten"
    assert (caught.value.param, caught.value.exit_code) == ("DST", 2)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.pure
def test_the_folder_round_the_target_must_be_there(tmp_path: Path, home: Home) -> None:
    with pytest.raises(UsageError) as caught:
        made(tmp_path / "absent", tmp_path / "no" / "target", home, "q4")
    assert caught.value.message == f"the folder `{tmp_path / 'no'}` does not exist"


@pytest.mark.pure
def test_a_target_made_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    """An empty folder could be renamed over without a word."""
    target = tmp_path / "target"

    def work() -> None:
        with fresh_folder(target) as folder:
            (folder / "x").write_text("ours")
            target.mkdir()

    with pytest.raises(UsageError):
        work()
    assert left_behind(tmp_path) == ["target"]
    assert left_behind(target) == []


@pytest.mark.pure
@pytest.mark.parametrize("ending", [KeyboardInterrupt(), SystemExit(1), ModelError("broken")])
def test_what_ends_badly_leaves_nothing(tmp_path: Path, ending: BaseException) -> None:
    def work() -> None:
        with fresh_folder(tmp_path / "target") as folder:
            (folder / "x").write_text("half")
            raise ending

    with pytest.raises(type(ending)):
        work()
    assert left_behind(tmp_path) == []


@pytest.mark.pure
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with pytest.raises(ModelError) as caught, fresh_folder(target):
        raise OSError(28, "No space left on device")
    assert caught.value.message == f"`{target}` could not be written: No space left on device"
    assert left_behind(tmp_path) == []


@pytest.mark.tiny
@pytest.mark.parametrize("target", ["q4", "mlx"])
def test_no_room_is_said_whoever_writes(tmp_path: Path, target: Target) -> None:
    """numpy raises OSError and mlx RuntimeError: one sentence for both. A limit on the size of files stands
    for a full disk.
    """
    source = write_tiny_folder(tmp_path / "tiny")
    limited = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000)); from lattice_cli.cli import run; "
    command = [sys.executable, "-c", limited + "sys.exit(run(sys.argv[1:]))", "quantize", str(source)]
    (tmp_path / "tiny" / "tokenizer.json").unlink()
    done = subprocess.run(
        [*command, str(tmp_path / "out"), "--format", target], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3
    assert f"error: `{tmp_path / 'out'}` could not be written: " in done.stderr
    assert left_behind(tmp_path) == ["tiny"]


@pytest.mark.tiny
def test_a_weight_that_is_no_number_leaves_nothing(tmp_path: Path, home: Home) -> None:
    source = write_tiny_folder(tmp_path / "tiny")
    weights = load_file(source / "model.safetensors")
    weights["model.norm.weight"][3] = np.nan
    save_file(weights, source / "model.safetensors")
    with pytest.raises(BrokenWeights, match=r"a weight of `model\.norm\.weight` is not a finite number"):
        made(source, tmp_path / "q4", home, "q4")
    assert left_behind(tmp_path) == ["tiny"]


@pytest.mark.wire
def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    """In the middle of 90 M weights, seconds of work: exit status 130, no folder, no word."""
    source = write_tiny_folder(tmp_path / "tiny")
    weights = load_file(source / "model.safetensors")
    block = np.random.default_rng(0).standard_normal((1000, 1000)).astype(np.float16)
    save_file(weights | {f"extra.{i}.weight": block for i in range(90)}, source / "model.safetensors")
    command = [*LATTICE, "quantize", str(source), str(tmp_path / "out"), "--format", "q4"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline_s = time.monotonic() + 60
        while not any(tmp_path.glob(".out.*.partial/extra_1*.q4")):
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert left_behind(tmp_path) == ["tiny"]


# What may be asked for.


@pytest.mark.pure
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("q4", None, None), ("q4", 4, 32)),
        (("q4", 4, 32), ("q4", 4, 32)),
        (("mlx", None, None), ("mlx", 4, 64)),
        (("mlx", 8, 32), ("mlx", 8, 32)),
    ],
)
def test_what_the_options_mean(asked: tuple[Any, ...], expected: tuple[str, int, int]) -> None:
    packing = choose_packing(*asked)
    assert (packing.target, packing.bits, packing.group_size) == expected


@pytest.mark.pure
@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (("q4", 8, None), "`--bits` is 8, and the q4 format has 4"),
        (("q4", None, 64), "`--group-size` is 64, and the q4 format has 32"),
        (("mlx", 3, None), "`--bits` is 3, and must be 4 or 8"),
        (("mlx", None, 128), "`--group-size` is 128, and must be 32 or 64"),
    ],
)
def test_what_neither_format_has_is_refused(asked: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose_packing(*asked)
    assert caught.value.message == sentence


@pytest.mark.pure
def test_a_script_has_no_weights(tmp_path: Path, home: Home) -> None:
    (tmp_path / "model.json").write_text('{"name": "x"}')
    name = f"script:{tmp_path / 'model.json'}"
    with pytest.raises(UnknownFormat) as caught:
        quantize(name, tmp_path / "q4", choose_packing("q4", None, None), home)
    assert caught.value.message == f"`{name}` is a script, and has no weights to quantize"


@pytest.mark.pure
def test_what_lies_beside_the_weights_is_copied(tmp_path: Path) -> None:
    """Tokenizer, template and licence; no weights, no code, no notes."""
    from lattice_cli.model.side_files import copy_side_files

    kept = ["LICENSE", "chat_template.jinja", "merges.txt", "special_tokens_map.json", "tokenizer.json", "vocab.json"]
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    for name in (*kept, "README.md", "modeling_x.py", "model.safetensors", "config.json"):
        (tmp_path / "from" / name).write_text(name)
    copy_side_files(tmp_path / "from", tmp_path / "to")
    assert left_behind(tmp_path / "to") == sorted(kept)


@pytest.mark.pure
def test_a_config_forgets_how_its_weights_were_packed() -> None:
    from lattice_cli.model.side_files import without_quantization

    packed = {"model_type": "x", "quantization": {}, "text_config": {"a": 1, "quantization_config": {"b": 2}}}
    assert without_quantization(packed) == {"model_type": "x", "text_config": {"a": 1}}


# The real model.


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_smollm2_keeps_its_bits_as_a_q4_folder(tmp_path: Path) -> None:
    """210 of its 211 matrices are Q4_1, whose blocks use both ends of their range: they come back bit for bit,
    and so do the norms. The embedding goes from 8 bits to 4. It still knows the capital of France.
    """
    from lattice_cli.model.dense import gguf_weights
    from lattice_cli.model.gguf import gguf_config
    from lattice_cli.model.gguf_header import read_header

    file = smollm2()
    done = subprocess.run(
        [*LATTICE, "quantize", str(file), str(tmp_path / "q4"), "--format", "q4"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert f"`{file.stem}` is in Q4_1: it is expanded first, and what it lost stays lost\n" in done.stderr
    found = read_format(tmp_path / "q4")
    assert found == ModelFormat("q4", "llama", "4-bit group 32", 8192, found.nbytes)
    assert 84_000_000 < found.nbytes < 85_000_000
    expanded = parameters(load_path(tmp_path / "q4", Home(tmp_path, tmp_path)).network)
    header = read_header(file)
    differ = [
        weight.name
        for weight in gguf_weights(header, gguf_config(header))
        if not np.array_equal(np.array(weight.load()), expanded[weight.name])
    ]
    assert differ == ["model.embed_tokens.weight"]
    question = ["--prompt", "What is the capital of France?", "--temperature", "0", "--max-tokens", "12"]
    answer = subprocess.run(
        [*LATTICE, "chat", "--model", str(tmp_path / "q4"), *question], capture_output=True, text=True, timeout=120
    )
    assert answer.stdout == "The capital of France is Paris.\n"
