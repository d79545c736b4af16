"""A path -> ModelFormat, from headers and config only.

Knows files and their headers; opens no weights and imports no mlx. What it accepts is whole: every
shard is there and as long as its header says.

Thread: any
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from lattice_cli.errors import BrokenWeights, UnknownFormat
from lattice_cli.model.card import ModelFormat
from lattice_cli.model.folder import Fields, context_tokens, read_config, read_fields, text_config
from lattice_cli.model.gguf_header import GgufHeader, read_header, type_name
from lattice_cli.model.q4_header import BLOCK_WEIGHTS, holds_q4, read_index, read_q4_config
from lattice_cli.model.unused import unused_note

_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")
_HEADER_LIMIT = 100_000_000  # bytes, as the safetensors library


def read_format(path: Path) -> ModelFormat:
    """What kind of model lies at `path`: a folder or a `.gguf` file. Cost: milliseconds.

    In a folder of several kinds safetensors win, then `.q4` files, as in the Rust engine.

    Raises: UnknownFormat (none of the formats we read), BrokenWeights (a missing, cut or unreadable file).
    """
    path = path.expanduser()
    if path.is_file() and path.suffix.lower() == ".gguf":
        return _gguf_format(path)
    if path.is_dir():
        if weight_files(path):
            return _folder_format(path)
        if holds_q4(path):
            return _q4_format(path)
        only = find_gguf(path)
        if only is not None:
            return _gguf_format(only)
    raise _unknown(path)


def find_gguf(folder: Path) -> Path | None:
    """The one `.gguf` file of a folder; None where there is none.

    Raises: UnknownFormat where there are several.
    """
    found = sorted(file for file in folder.glob("*.gguf") if file.is_file())
    if len(found) > 1:
        raise UnknownFormat(
            f"`{folder}` holds {len(found)} GGUF files, and one is needed", hint=f"name one, e.g. `{found[0]}`"
        )
    return found[0] if found else None


def _unknown(path: Path) -> UnknownFormat:
    if not path.exists():
        return UnknownFormat(f"`{path}` does not exist")
    if path.is_file():
        return UnknownFormat(f"`{path}` is not a model file we read: its name does not end in `.gguf`")
    return UnknownFormat(
        f"`{path}` is not a model folder: looked for `model.safetensors`, `{_INDEX}`, "
        "`model*.safetensors`, `*.q4` and one `.gguf` file"
    )


# Safetensors folders.


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, those its index names included; empty when it has none.

    Raises: BrokenWeights for an index that cannot be read.
    """
    index = folder / _INDEX
    named: set[str] = set()
    if index.is_file():
        weight_map = read_fields(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise BrokenWeights(f"`{index}` has no `weight_map`")
        named = {str(name) for name in weight_map.values()}
    named |= {file.name for file in folder.glob("model*.safetensors")}
    for name in list(named):
        match = _SHARD.search(name)
        if match:
            count = int(match[2])
            named |= {f"{name[: match.start()]}-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)}
    return [folder / name for name in sorted(named)]


def _folder_format(folder: Path) -> ModelFormat:
    config = read_config(folder)
    files = weight_files(folder)
    headers = [read_safetensors_header(file) for file in files]
    made_by_mlx = any((header.get("__metadata__") or {}).get("format") == "mlx" for header in headers)
    return ModelFormat(
        kind="mlx" if made_by_mlx or "quantization" in config else "hf",
        architecture=config["model_type"],
        quantization=_quantization(config),
        context_tokens=context_tokens(config),
        nbytes=sum(file.stat().st_size for file in files),
        unused=unused_note(name for header in headers for name in header),
    )


def _quantization(config: Fields) -> str:
    """For people: "4-bit group 64", the foreign method's name, or "none"."""
    own = config.get("quantization")
    if isinstance(own, dict):
        mode = str(own.get("mode", "affine"))
        suffix = "" if mode == "affine" else f" {mode}"
        return f"{own.get('bits', '?')}-bit group {own.get('group_size', '?')}{suffix}"
    foreign = config.get("quantization_config") or text_config(config).get("quantization_config")
    return str(foreign.get("quant_method", "unknown")) if isinstance(foreign, dict) else "none"


def read_safetensors_header(path: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file whose data is all there.

    Raises: BrokenWeights for a missing, cut or damaged file.
    """
    try:
        nbytes = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            raw = file.read(length) if length <= min(nbytes, _HEADER_LIMIT) else b""
    except FileNotFoundError as error:
        raise BrokenWeights(f"`{path}` is missing", hint="fetch the model again") from error
    except OSError as error:
        raise BrokenWeights(f"`{path}` cannot be read: {error.strerror or error}") from error
    if nbytes < 8 or len(raw) < length:
        raise BrokenWeights(f"`{path}` is cut short: {nbytes} bytes", hint="fetch the file again")
    try:
        header = json.loads(raw)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise BrokenWeights(f"`{path}` is no safetensors file: its header cannot be read") from error
    if nbytes < expected:
        raise BrokenWeights(
            f"`{path}` is cut short: its header asks for {expected} bytes and it has {nbytes}",
            hint="fetch the file again",
        )
    found: dict[str, Any] = header
    return found


# Folders of `.q4` files.


def _q4_format(folder: Path) -> ModelFormat:
    config = read_q4_config(folder)
    tensors = read_index(folder)
    return ModelFormat(
        kind="q4",
        architecture=config["model_type"],
        quantization=f"4-bit group {BLOCK_WEIGHTS}",
        context_tokens=context_tokens(config),
        nbytes=sum(tensor.nbytes for tensor in tensors),
        unused=unused_note(tensor.name for tensor in tensors),
    )


# GGUF files.


def _gguf_format(path: Path) -> ModelFormat:
    header = read_header(path, arrays=False)
    if not header.architecture:
        raise BrokenWeights(f"`{path}` names no `general.architecture`, so the architecture is unknown")
    window = header.at("context_length")
    return ModelFormat(
        kind="gguf",
        architecture=header.architecture,
        quantization=_gguf_quantization(header),
        context_tokens=window if isinstance(window, int) and window > 0 else None,
        nbytes=path.stat().st_size,
    )


def _gguf_quantization(header: GgufHeader) -> str:
    """The file type it states ("Q4_K_M"), else the type that holds most bytes."""
    from gguf.constants import LlamaFileType

    stated = header.metadata.get("general.file_type")
    if isinstance(stated, int) and stated in LlamaFileType.__members__.values():
        return str(LlamaFileType(stated).name).removeprefix("MOSTLY_").removeprefix("ALL_")
    sizes: dict[int, int] = {}
    for tensor in header.tensors:
        sizes[tensor.type_id] = sizes.get(tensor.type_id, 0) + tensor.nbytes
    return type_name(max(sizes, key=lambda type_id: sizes[type_id])) if sizes else "none"
