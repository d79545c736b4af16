"""Weights -> the safetensors of an MLX folder, packed as mlx_lm.convert packs them.

Which modules are packed is what mlx-lm's `quantize_model` decides: those that can be, whose rows are whole
groups, and that the model's own predicate does not keep. Knows mlx modules and shards; knows no source.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_cli.model.dense import Weight, one_by_one
from lattice_cli.model.side_files import write_fields

if TYPE_CHECKING:
    import mlx.core as mx

SHARD_BYTES = 1 << 30

Layouts = Mapping[str, Mapping[str, Any]]


def packed_modules(network: Any, common: Mapping[str, int]) -> Layouts:
    """Module path -> layout for all that is to be packed; `common` is {"group_size", "bits"}.

    `network` is one of the model's config, its weights are not looked at.
    """
    predicate = getattr(network, "quant_predicate", None)
    found: dict[str, Mapping[str, Any]] = {}
    for path, module in network.named_modules():
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % common["group_size"]:
            continue
        wish = predicate(path, module) if predicate is not None else True
        if wish:
            found[path] = wish if isinstance(wish, dict) else common
    return found


def write_shards(
    folder: Path,
    weights: list[Weight],
    layouts: Layouts,
    half: Any | None,
    done: Callable[[int], None],
    *,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write all weights, those of `layouts` packed, in shards a little larger than `shard_bytes`; memory is a
    shard and a weight.

    Numbers with a fraction are cast to `half` where it is given. `done` hears the bytes read of each weight.
    Raises: OSError where a file cannot be written; what reading raises.
    """
    files: list[tuple[Path, list[str]]] = []
    shard: dict[str, mx.array] = {}
    for weight in one_by_one(weights):
        shard |= _arrays(weight, layouts.get(weight.name.removesuffix(".weight")), half)
        done(weight.nbytes)
        last = not weights  # `one_by_one` takes them out
        if last or sum(array.nbytes for array in shard.values()) >= shard_bytes:
            file = folder / f"shard-{len(files) + 1:05d}.safetensors"
            _save(file, shard)
            files.append((file, list(shard)))
            shard.clear()
    _name_shards(folder, files)


def _arrays(weight: Weight, layout: Mapping[str, Any] | None, half: Any | None) -> dict[str, mx.array]:
    import mlx.core as mx

    dense = weight.load()
    if half is not None and mx.issubdtype(dense.dtype, mx.floating):
        dense = dense.astype(half)
    if layout is None:
        arrays = {weight.name: dense}
    else:
        owner = weight.name.removesuffix(".weight")
        names = (weight.name, f"{owner}.scales", f"{owner}.biases")
        arrays = dict(zip(names, mx.quantize(dense, **layout), strict=False))  # without biases in some modes
    mx.eval(list(arrays.values()))
    mx.clear_cache()
    return arrays


def _save(file: Path, arrays: dict[str, mx.array]) -> None:
    import mlx.core as mx

    try:
        mx.save_safetensors(str(file), arrays, metadata={"format": "mlx"})
    except RuntimeError as error:  # UPSTREAM: mlx raises it for a full disk
        raise OSError(str(error)) from error


def _name_shards(folder: Path, files: list[tuple[Path, list[str]]]) -> None:
    """Give the shards the names the hub's tools look for, now that their number is known, and an index."""
    if len(files) == 1:
        files[0][0].rename(folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, (file, names) in enumerate(files, 1):
        target = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        file.rename(folder / target)
        weight_map |= dict.fromkeys(names, target)
    write_fields(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
