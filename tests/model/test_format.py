"""What a model is, from headers and config only; every kind of damage gets one sentence naming the file.

Thread: any
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from lattice_cli.errors import BrokenWeights, ModelError, UnknownFormat
from lattice_cli.model.card import ModelFormat
from lattice_cli.model.format import find_gguf, read_format, weight_files
from tests.model.gguf_files import write_gguf
from tests.tiny import write_json, write_tiny_folder

pytestmark = pytest.mark.pure

INDEX = "model.safetensors.index.json"


def edit_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, **changes})


def split_in_two(folder: Path) -> tuple[Path, Path]:
    """The folder's weights as two shards with an index."""
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    shards = folder / "model-00001-of-00002.safetensors", folder / "model-00002-of-00002.safetensors"
    for shard, half in zip(shards, halves, strict=True):
        save_file({name: weights[name] for name in half}, shard)
    where = {name: shard.name for shard, half in zip(shards, halves, strict=True) for name in half}
    write_json(folder / INDEX, {"weight_map": where})
    (folder / "model.safetensors").unlink()
    return shards


def cut(file: Path, nbytes: int) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:nbytes])


def test_a_hugging_face_folder(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path, "qwen2")
    nbytes = (folder / "model.safetensors").stat().st_size
    assert read_format(folder) == ModelFormat("hf", "qwen2", "none", 512, nbytes)


def test_the_window_of_a_nested_config_is_found(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path, "qwen3_5")
    nbytes = (folder / "model.safetensors").stat().st_size
    left_out = "1 vision tensor and 1 draft tensor left out: text needs none of them"
    assert read_format(folder) == ModelFormat("hf", "qwen3_5", "none", 512, nbytes, left_out)


def test_a_config_without_a_window(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    edit_config(folder, max_position_embeddings=None)
    assert read_format(folder).context_tokens is None


def test_an_mlx_folder_by_its_quantization(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    edit_config(folder, quantization={"group_size": 64, "bits": 4, "model.embed_tokens": {"bits": 8}})
    assert (read_format(folder).kind, read_format(folder).quantization) == ("mlx", "4-bit group 64")


def test_an_mlx_folder_by_its_files_metadata(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors", metadata={"format": "mlx"})
    assert (read_format(folder).kind, read_format(folder).quantization) == ("mlx", "none")


@pytest.mark.parametrize(
    ("config", "label"),
    [
        ({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}, "4-bit group 32 mxfp4"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "fp8"),
        ({"quantization_config": {}}, "unknown"),
    ],
)
def test_other_quantizations_have_a_name(tmp_path: Path, config: dict[str, object], label: str) -> None:
    folder = write_tiny_folder(tmp_path)
    edit_config(folder, **config)
    assert read_format(folder).quantization == label


def test_shards_count_together(tmp_path: Path) -> None:
    shards = split_in_two(write_tiny_folder(tmp_path))
    assert weight_files(tmp_path) == list(shards)
    assert read_format(tmp_path).nbytes == sum(shard.stat().st_size for shard in shards)


def test_a_gguf_file_and_a_folder_with_one(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", "qwen2", "Q8_0")
    expected = ModelFormat("gguf", "qwen2", "Q8_0", 512, file.stat().st_size)
    assert read_format(file) == expected
    assert read_format(tmp_path) == expected
    assert find_gguf(tmp_path) == file


def test_a_tilde_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_tiny_folder(tmp_path / "tiny")
    assert read_format(Path("~/tiny")).architecture == "llama"


# What is not a model.


def test_an_unrecognised_folder_is_told_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UnknownFormat) as caught:
        read_format(tmp_path)
    assert caught.value.message == (
        f"`{tmp_path}` is not a model folder: looked for `model.safetensors`, `model.safetensors.index.json`, "
        "`model*.safetensors`, `*.q4` and one `.gguf` file"
    )
    assert caught.value.exit_code == 3


def test_several_gguf_files_are_a_choice_for_the_user(tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(UnknownFormat) as caught:
        read_format(tmp_path)
    assert caught.value.message == f"`{tmp_path}` holds 2 GGUF files, and one is needed"
    assert caught.value.hint == f"name one, e.g. `{tmp_path / 'a.gguf'}`"


def test_a_path_that_is_not_there_and_a_file_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match="does not exist"):
        read_format(tmp_path / "absent")
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(UnknownFormat, match=r"does not end in `\.gguf`"):
        read_format(tmp_path / "model.bin")


# What is damaged.

Damage = Callable[[Path], Path]


def no_config(folder: Path) -> Path:
    (folder / "config.json").unlink()
    return folder / "config.json"


def config_is_text(folder: Path) -> Path:
    (folder / "config.json").write_text("<html>not found</html>")
    return folder / "config.json"


def config_is_bytes(folder: Path) -> Path:
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")
    return folder / "config.json"


def config_is_a_list(folder: Path) -> Path:
    write_json(folder / "config.json", [])
    return folder / "config.json"


def no_model_type(folder: Path) -> Path:
    edit_config(folder, model_type=None)
    return folder / "config.json"


def shard_missing(folder: Path) -> Path:
    shards = split_in_two(folder)
    shards[1].unlink()
    return shards[1]


def shard_missing_and_no_index(folder: Path) -> Path:
    shards = split_in_two(folder)
    shards[0].unlink()
    (folder / INDEX).unlink()
    return shards[0]


def index_is_empty(folder: Path) -> Path:
    write_json(folder / INDEX, {})
    return folder / INDEX


def index_is_text(folder: Path) -> Path:
    (folder / INDEX).write_text("{")
    return folder / INDEX


def weights_cut_by_one(folder: Path) -> Path:
    cut(folder / "model.safetensors", -1)
    return folder / "model.safetensors"


def weights_cut_in_the_header(folder: Path) -> Path:
    cut(folder / "model.safetensors", 100)
    return folder / "model.safetensors"


def weights_empty(folder: Path) -> Path:
    cut(folder / "model.safetensors", 0)
    return folder / "model.safetensors"


def weights_are_a_page(folder: Path) -> Path:
    (folder / "model.safetensors").write_text("<html>" * 100)
    return folder / "model.safetensors"


def weights_header_is_no_json(folder: Path) -> Path:
    (folder / "model.safetensors").write_bytes((4).to_bytes(8, "little") + b"oops")
    return folder / "model.safetensors"


def weights_are_a_dangling_link(folder: Path) -> Path:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "blob")
    return folder / "model.safetensors"


@pytest.mark.parametrize(
    "damage",
    [
        no_config,
        config_is_text,
        config_is_bytes,
        config_is_a_list,
        no_model_type,
        shard_missing,
        shard_missing_and_no_index,
        index_is_empty,
        index_is_text,
        weights_cut_by_one,
        weights_cut_in_the_header,
        weights_empty,
        weights_are_a_page,
        weights_header_is_no_json,
        weights_are_a_dangling_link,
    ],
)
def test_a_damaged_folder_names_the_file_in_one_sentence(tmp_path: Path, damage: Damage) -> None:
    """A traceback from deep inside a library is no answer to a download that broke off."""
    file = damage(write_tiny_folder(tmp_path))
    with pytest.raises(BrokenWeights) as caught:
        read_format(tmp_path)
    assert f"`{file}`" in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 3


def test_a_gguf_file_cut_anywhere_names_the_file(tmp_path: Path) -> None:
    """Every length: in the magic, the counts, a string, an array, the tensor list, the data."""
    whole = write_gguf(tmp_path / "tiny.gguf", "llama", "Q4_0")
    data, file = whole.read_bytes(), tmp_path / "cut.gguf"
    for nbytes in [*range(400), *range(400, 20_000, 97), *range(20_000, len(data) - 33, 99_991), len(data) - 33]:
        file.write_bytes(data[:nbytes])
        with pytest.raises(ModelError) as caught:
            read_format(file)
        assert f"`{file}`" in caught.value.message, nbytes
        assert "\n" not in caught.value.message


def test_a_gguf_of_another_version_or_byte_order(tmp_path: Path) -> None:
    data = bytearray(write_gguf(tmp_path / "tiny.gguf", "llama", "F32").read_bytes())
    data[4:8] = (3).to_bytes(4, "big")
    (tmp_path / "big.gguf").write_bytes(data)
    with pytest.raises(UnknownFormat, match="we read versions 2 and 3, little endian"):
        read_format(tmp_path / "big.gguf")


def test_reading_a_format_leaves_no_trace(tmp_path: Path) -> None:
    """`lattice models` calls it on folders that belong to others."""
    folder = write_tiny_folder(tmp_path / "model")
    before = sorted(folder.iterdir())
    read_format(folder)
    assert sorted(folder.iterdir()) == before
    shutil.rmtree(folder)
