"""A model's weights one at a time and expanded, for writing them in another format.

Nothing is read before `Weight.read`, except that a GGUF file's header and a `.q4` folder's packed blocks
are in memory: beside those, memory is one tensor's. Knows three readers; knows no target.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_cli.errors import UnknownFormat
from lattice_cli.model.format import weight_files
from lattice_cli.model.gguf import ROPE_FACTORS, half_split, missing_biases, parameter_of, rotary_heads
from lattice_cli.model.gguf_header import GgufHeader, GgufTensor
from lattice_cli.model.gguf_tensors import read_dense
from lattice_cli.model.network import translated
from lattice_cli.model.precision import expand, leaves

if TYPE_CHECKING:
    import mlx.core as mx


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of `nbytes` in the file or folder `source`; `read` gives it without evaluating it."""

    source: Path
    name: str
    shape: tuple[int, ...]
    nbytes: int
    read: Callable[[], mx.array]

    def load(self) -> mx.array:
        """The weight in its own number format, or in float32 where it was packed.

        Raises: ModelError.
        """
        import mlx.core as mx

        with translated(self.source):
            array = self.read()
            mx.eval(array)
        return array


def one_by_one(weights: list[Weight]) -> Iterator[Weight]:
    """Hand the weights out in the order of their names and let each go: `weights` is empty in the end."""
    weights.sort(key=lambda weight: weight.name, reverse=True)
    while weights:
        yield weights.pop()


def checkpoint_weights(folder: Path) -> list[Weight]:
    """What a folder's safetensors hold, under the names they have there; what is no number with a fraction
    is left out.

    Raises: BrokenWeights.
    """
    import mlx.core as mx

    found: list[Weight] = []
    for file in weight_files(folder):
        with translated(file):
            arrays: Any = mx.load(str(file))
        real = {name: array for name, array in arrays.items() if mx.issubdtype(array.dtype, mx.floating)}
        found += [_plain(file, name, array) for name, array in real.items()]
    return found


def network_weights(folder: Path, network: Any) -> list[Weight]:
    """The parameters of a folder's network under mlx-lm's names. The caller lets the network itself go."""
    packed = {path: module for path, module in network.named_modules() if "scales" in module}
    found: list[Weight] = []
    for name, array in leaves(network):
        owner, _, kind = name.rpartition(".")
        if owner not in packed or kind == "bias":
            found.append(_plain(folder, name, array))
        elif kind == "weight":
            module = packed[owner]
            shape = (*array.shape[:-1], array.shape[-1] * 32 // module.bits)
            found.append(Weight(folder, name, shape, array.nbytes, partial(expand, module)))
    return found


def _plain(source: Path, name: str, array: mx.array) -> Weight:
    return Weight(source, name, tuple(array.shape), array.nbytes, lambda: array)


def gguf_weights(header: GgufHeader, config: dict[str, Any]) -> list[Weight]:
    """The tensors of a GGUF file under mlx-lm's names, which are the checkpoint's for what is read from GGUF.

    Raises: UnknownFormat for a file with rotary factors, for which no config has a place.
    """
    import mlx.core as mx

    if any(tensor.name == ROPE_FACTORS for tensor in header.tensors):
        raise UnknownFormat(
            f"`{header.path}` brings a factor for each rotary frequency, which only a GGUF file can hold",
            hint="quantize the model's safetensors folder",
        )
    found = []
    for tensor in header.tensors:
        path, kind = parameter_of(tensor.name)
        heads = rotary_heads(config, path)
        read = partial(_gguf_weight, header, tensor, heads)
        found.append(Weight(header.path, f"{path}.{kind}", tensor.shape, tensor.nbytes, read))
    for name in missing_biases(config, {weight.name for weight in found}):
        found.append(_plain(header.path, name, mx.zeros((config["hidden_size"],))))
    return found


def _gguf_weight(header: GgufHeader, tensor: GgufTensor, heads: int | None) -> mx.array:
    dense = read_dense(header, tensor)
    return half_split(dense, heads) if heads else dense


def total_bytes(weights: list[Weight]) -> int:
    """How much there is to read."""
    return sum(weight.nbytes for weight in weights)
