"""A model on disk -> the network that loading would make of it on a GPU, without its weights: names, shapes and
formats of all arrays are true, and come from headers.

Knows the readers' ways of not reading; settles and evaluates nothing.

Thread: any (mlx runs on the calling one)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_cli.model.folder import Fields, read_config, text_config
from lattice_cli.model.format import read_format

if TYPE_CHECKING:
    import mlx.core as mx

Layout = dict[str, Any]  # {"group_size", "bits", "mode"}


def outline(path: Path) -> Any:
    """The network of a folder or `.gguf` file. Its arrays must not be evaluated: that would read the weights, or make
    zeros of them. Cost: 0.03-0.2 s, whatever their size; 0.6 s more where mlx-lm's own loader is needed.

    Raises: UnknownFormat, BrokenWeights.
    """
    kind = read_format(path).kind
    if kind == "gguf":
        return _gguf_outline(path)
    config = read_config(path)
    if kind == "q4":
        from lattice_cli.model.q4 import outline_q4

        return outline_q4(path, config)
    return _folder_outline(path, config)


def _gguf_outline(path: Path) -> Any:
    from lattice_cli.model.gguf import read_gguf
    from lattice_cli.model.gguf_header import read_header
    from lattice_cli.model.gguf_tensors import outline_tensor
    from lattice_cli.model.load import find_file, gguf_network
    from lattice_cli.model.precision import follow_matrices

    file = find_file(path)
    network = gguf_network(file, read_gguf(read_header(file), outline_tensor))
    follow_matrices(network)
    return network


def _folder_outline(folder: Path, config: Fields) -> Any:
    """PERF: mlx-lm's loader, which reads headers alone too, takes transformers with it: 0.6 s beside 0.03."""
    import mlx.core as mx

    from lattice_cli.model.network import build_network, empty_network, load_folder, translated

    weights: dict[str, mx.array] = {}
    if _is_plain(folder, config):
        with translated(folder):
            for file in sorted(folder.glob("model*.safetensors")):
                found: Any = mx.load(str(file))
                weights |= found
            empty = empty_network(folder, config)
            weights = empty.sanitize(weights)
            layouts = _layouts(empty, weights, config.get("quantization"))
        if layouts is not None:
            return build_network(folder, config, weights, layouts)
    return load_folder(folder, config)


def _is_plain(folder: Path, config: Fields) -> bool:
    """Whether a folder is dense or in mlx's own quantization, of a type that is built without mlx-lm's loader."""
    from lattice_cli.model.network import LIGHT, known_config

    if known_config(config)["model_type"] not in LIGHT or config.get("model_file") is not None:
        return False
    if config.get("quantization") is not None:
        return not config.get("quantize_activations")
    theirs = any("quantization_config" in part for part in (config, text_config(config)))
    return not theirs and not (folder / "hf_quant_config.json").exists()


def _layouts(empty: Any, weights: dict[str, mx.array], own: Any) -> dict[str, Layout] | None:
    """How modules are quantized, by path, as mlx-lm's `load_model` finds it: what the config says of one, else what
    its shapes say. None for what is not mlx's affine quantization throughout.
    """
    import mlx.core as mx

    found: dict[str, Layout] = {}
    if own is None:
        return found
    common = {name: own[name] for name in ("group_size", "bits")}
    for path, module in empty.named_modules():
        named = own.get(path)
        if isinstance(named, dict) or named is True:
            found[path] = dict(named) if named is not True else common
        elif named is None and f"{path}.scales" in weights and hasattr(module, "to_quantized"):
            width, scales = module.weight.shape[-1], weights[f"{path}.scales"]
            bits = weights[f"{path}.weight"].shape[-1] * 32 // width
            mode = "another" if scales.dtype == mx.uint8 else "affine"
            found[path] = {"group_size": width // scales.shape[-1], "bits": bits, "mode": mode}
    affine = all(layout.get("mode", "affine") == "affine" for layout in (own, *found.values()))
    return found if affine else None
