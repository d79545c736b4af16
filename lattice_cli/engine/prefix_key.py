"""What a state on the disk belongs to: the model's files, its template, and all that decides what its bytes mean.

Knows files and versions; knows no tensors.

Thread: worker
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path

from lattice_cli import __version__
from lattice_cli.kernels import cuda_source, native_choice, platform
from lattice_cli.model.card import ModelCard
from lattice_cli.settings import Home

_ENDINGS = (".safetensors", ".gguf", ".q4", ".json", ".f16")
_EDGE_BYTES, _SAMPLE_BYTES, _STRIDE_BYTES = 1 << 20, 1 << 16, 1 << 26


def prefix_key(path: Path, card: ModelCard, home: Home) -> str:
    """64 hex digits. Cost: milliseconds."""
    native = native_choice.choose(home)
    module = native.module
    named = [
        __version__,
        *(importlib.metadata.version(name) for name in ("mlx", "mlx-lm")),
        platform.backend_name(),
        home.kernels if module is not None else "off",
        "" if module is None else Path(module.__file__).parent.name,  # a hash of the sources and of the machine's kind
        cuda_source.sources_digest() if native.gpu else "",
        card.chat_template or "",
        card.tool_template or "",
    ]
    digest = hashlib.sha256("\0".join(named).encode())
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.suffix in _ENDINGS and file.is_file():
            digest.update(file.name.encode() + b"\0" + sample(file))
    return digest.hexdigest()


def sample(file: Path) -> bytes:
    """A hash of a file's size, its ends, and a piece of every 64 MB: weights that differ, differ in all of them."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        digest.update(stream.read(_EDGE_BYTES))
        for at in range(_STRIDE_BYTES, size, _STRIDE_BYTES):
            stream.seek(at)
            digest.update(stream.read(_SAMPLE_BYTES))
        stream.seek(max(0, size - _EDGE_BYTES))
        digest.update(stream.read(_EDGE_BYTES))
    return digest.digest()
