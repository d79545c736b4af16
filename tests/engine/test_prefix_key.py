"""What a state on the disk belongs to: whatever decides what its bytes mean is in the key.

Thread: any
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lattice_cli.engine.prefix_key import prefix_key
from lattice_cli.kernels import cuda_source, native_choice, platform
from lattice_cli.kernels.native_choice import Native
from lattice_cli.settings import Home
from tests.engine.test_backend import CARD

pytestmark = pytest.mark.tiny


def test_another_of_anything_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path, tmp_path / "models")
    model = tmp_path / "model"
    model.mkdir()
    (model / "a.safetensors").write_bytes(b"weights")
    native = Native(None, "none")
    monkeypatch.setattr(native_choice, "choose", lambda _home: native)
    keys = [prefix_key(model, CARD, home)]
    assert prefix_key(model, CARD, home) == keys[0]
    keys.append(prefix_key(model, replace(CARD, chat_template="{{ other }}"), home))
    monkeypatch.setattr(platform, "backend_name", lambda: "cuda")
    keys.append(prefix_key(model, CARD, home))  # mlx-lm's own caches on a GPU
    native = replace(native, gpu=True)
    keys.append(prefix_key(model, CARD, home))  # a fused decoder's pages there
    cuda_source.text_of.cache_clear()
    monkeypatch.setattr(cuda_source, "text_of", lambda name: name)
    keys.append(prefix_key(model, CARD, home))  # other kernels, which may lay pages out in another way
    (model / "a.safetensors").write_bytes(b"others!")
    keys.append(prefix_key(model, CARD, home))
    assert len(set(keys)) == len(keys) and all(len(key) == 64 for key in keys)
