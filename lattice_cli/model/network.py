"""The border to mlx-lm's models: builds a network and turns mlx-lm's exceptions into one sentence.

The only file that imports mlx_lm.utils. No code a model folder brings is ever run (report 143).

Thread: worker
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_cli.errors import BrokenWeights, UnknownFormat
from lattice_cli.model.folder import Fields
from lattice_cli.model.unused import is_vision
from lattice_cli.model.upstream import file_limit_kept, light_import

if TYPE_CHECKING:
    import mlx.core as mx

LIGHT = ("llama", "qwen2", "qwen3", "qwen3_5")  # types that mlx-lm does not map to others
# UPSTREAM: mlx-lm 0.32 reads the text part of these alone too, and does not know the name it is saved under.
_TEXT_PARTS = {"qwen3_5_text": "qwen3_5", "qwen3_5_moe_text": "qwen3_5_moe"}
# What mlx-lm, mlx and json raise for a folder they cannot make sense of.
_FOREIGN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
_COUNTED = re.compile(r"(Received|Missing) (\d+) parameters(?: not in model)?: \n(.*?)\.?\Z", re.DOTALL)
_SHAPE = re.compile(r"Expected shape (\(.*?\)) but received shape (\(.*?\)) for parameter (\S+)")


def load_folder(folder: Path, config: Fields, *, float32: bool = False) -> Any:
    """A folder's network through mlx-lm, its weights still unread. Cost: 2 s for mlx-lm's first import.

    Vision weights are left out: we use the text model. `float32` says that the network will compute in
    float32: vectors are widened before mlx-lm works on them, for it adds 1 to Qwen3.5's norms in their
    own format, and in bfloat16 that costs up to 0.4% of each.
    Raises: UnknownFormat, BrokenWeights.
    """
    if config.get("model_file") is not None:
        raise UnknownFormat(
            f"`{folder / 'config.json'}` asks to run the folder's own code "
            f"(`model_file` is {json.dumps(config['model_file'])}), and we never do"
        )
    with file_limit_kept():
        from mlx_lm.utils import load_model

    with translated(folder):
        network, _ = load_model(folder, lazy=True, get_model_classes=partial(_text_classes, float32))
    return network


def _text_classes(float32: bool, config: dict[str, Any]) -> tuple[Any, Any]:
    """mlx-lm's classes for a config, with vision weights dropped before its own `sanitize`."""
    import mlx.core as mx

    model_class, arguments_class = model_classes(config)

    class TextOnly(model_class):  # type: ignore[misc, valid-type]
        def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
            kept = {name: array for name, array in weights.items() if not is_vision(name)}
            if float32:
                vectors = {name: array for name, array in kept.items() if array.ndim == 1}
                kept |= {n: a.astype(mx.float32) for n, a in vectors.items() if mx.issubdtype(a.dtype, mx.floating)}
            inherited = getattr(super(), "sanitize", None)
            return inherited(kept) if inherited else kept

    TextOnly.__name__ = TextOnly.__qualname__ = model_class.__name__
    return TextOnly, arguments_class


def known_config(config: Fields) -> dict[str, Any]:
    """The same with a `model_type` that mlx-lm knows."""
    kind = str(config.get("model_type"))
    return {**config, "model_type": _TEXT_PARTS[kind]} if kind in _TEXT_PARTS else dict(config)


def model_classes(config: Fields) -> tuple[Any, Any]:
    """mlx-lm's model and argument classes. Raises: UnknownFormat, naming the type and mlx-lm's version."""
    config = known_config(config)
    if config.get("model_type") in LIGHT:
        with light_import():
            module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
        return module.Model, module.ModelArgs
    with file_limit_kept():
        from mlx_lm.utils import _get_classes  # UPSTREAM: private, and the default of a public parameter

        try:
            model_class, arguments_class = _get_classes(dict(config))
        except (ValueError, ImportError) as error:
            raise UnknownFormat(
                f"the model type `{config.get('model_type')}` is not supported by "
                f"mlx-lm {importlib.metadata.version('mlx-lm')}",
                hint="a later version may know it: pip install --upgrade lattice-cli",
            ) from error
    return model_class, arguments_class


def empty_network(file: Path, config: Fields, *, float32: bool = False) -> Any:
    """A network of a config, its weights random and not evaluated; `sanitize` as in `load_folder`.

    `file` is named in errors. Raises: UnknownFormat, BrokenWeights.
    """
    own = copy.deepcopy(dict(config))  # mlx-lm fills nested fields in
    model_class, arguments_class = _text_classes(float32, own)
    with translated(file):
        return model_class(arguments_class.from_dict(own))


def build_checkpoint(
    file: Path, config: Fields, weights: dict[str, mx.array], layout: Mapping[str, int], *, float32: bool = False
) -> Any:
    """`build_network` for weights under a checkpoint's names, which mlx-lm's `sanitize` turns into its own.

    Modules that have `scales` are packed as `layout` says; `float32` as in `load_folder`.
    Raises: UnknownFormat, BrokenWeights.
    """
    with translated(file):
        kept = empty_network(file, config, float32=float32).sanitize(weights)
    for name in [name for name in kept if name.endswith((".scales", ".biases"))]:
        if f"{name.rpartition('.')[0]}.weight" not in kept:  # a tied head: mlx-lm drops its weight alone
            del kept[name]
    packed = {name.removesuffix(".scales"): layout for name in kept if name.endswith(".scales")}
    return build_network(file, config, kept, packed)


def build_network(
    file: Path, config: Fields, weights: Mapping[str, mx.array], quantization: Mapping[str, Mapping[str, int]]
) -> Any:
    """A network of weights already read; `quantization` names the module paths that are quantized.

    `file` is named in errors. Raises: UnknownFormat, BrokenWeights.
    """
    network = empty_network(file, config)
    from mlx.nn.layers.quantized import quantize

    def layout(path: str, _: object) -> bool | dict[str, int]:
        return dict(quantization[path]) if path in quantization else False

    with translated(file):
        quantize(network, class_predicate=layout)
        network.eval()
        network.load_weights(list(weights.items()), strict=True)
    return network


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what mlx and mlx-lm raise inside the block into one sentence about `path`."""
    try:
        yield
    except _FOREIGN as error:
        raise explain(path, error) from error


def explain(path: Path, error: BaseException) -> BrokenWeights:
    """One sentence for an exception of mlx-lm about the model at `path` (report 118)."""
    text = str(error).strip()
    counted, shape = _COUNTED.search(text), _SHAPE.search(text)
    if counted:
        names = counted[3].split(",\n")
        first = ", ".join(f"`{name}`" for name in names[:3]) + (", ..." if len(names) > 3 else "")
        what = "has {} tensors its config has no place for" if counted[1] == "Received" else "lacks {} tensors"
        what = what.replace("tensors", "tensor") if counted[2] == "1" else what
        return BrokenWeights(f"`{path}` {what.format(counted[2])}: {first}")
    if shape:
        return BrokenWeights(f"`{path}` does not fit its config: `{shape[3]}` is {shape[2]} instead of {shape[1]}")
    reason = text.splitlines()[0].rstrip(".") if text else type(error).__name__
    if isinstance(error, KeyError):
        reason = f"{reason} is missing"
    return BrokenWeights(f"`{path}` cannot be loaded by mlx-lm: {reason}")


def make_caches(network: Any) -> list[Any]:
    """Empty caches of one row."""
    with light_import():
        from mlx_lm.models.cache import make_prompt_cache

    return list(make_prompt_cache(network))
