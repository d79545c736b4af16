"""Frozen settings, and the only reader of environment variables.

Settings are passed in, never fetched: a command builds them once and hands them down.

Thread: any
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_KERNELS = "exact"


@dataclass(frozen=True, slots=True)
class Home:
    """Where our data lies. It may be shared with Rust Lattice: touch only what we put there.

    `offline` forbids any network access (`LATTICE_OFFLINE` set to anything but "" or "0").
    `blas` is `LATTICE_BLAS`: a library path, "none", or None when unset.
    `kernels` is `LATTICE_KERNELS`: "off", "exact" (when unset) or "fast"; see kernels/native_choice.py.
    `default_model` is `LATTICE_SERVE_MODEL`, else `smollm2-135m`.
    """

    root: Path
    models: Path
    offline: bool = False
    blas: str | None = None
    kernels: str = "off"
    default_model: str = DEFAULT_MODEL

    @property
    def history(self) -> Path:
        """The line history of `lattice chat`."""
        return self.root / "chat_history"


def read_home(env: Mapping[str, str] = os.environ) -> Home:
    """`LATTICE_HOME` (default `~/.lattice`), `LATTICE_MODEL_CACHE` and what goes with them."""
    root = Path(env.get("LATTICE_HOME") or "~/.lattice").expanduser()
    models = Path(env["LATTICE_MODEL_CACHE"]).expanduser() if env.get("LATTICE_MODEL_CACHE") else root / "models"
    return Home(
        root=root,
        models=models,
        offline=env.get("LATTICE_OFFLINE", "") not in ("", "0"),
        blas=env.get("LATTICE_BLAS") or None,
        kernels=env.get("LATTICE_KERNELS") or DEFAULT_KERNELS,
        default_model=env.get("LATTICE_SERVE_MODEL") or DEFAULT_MODEL,
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`max_rows` jobs run at once and `max_pending` more may wait; `prefill_chunk` tokens, over all
    rows, are read between two steps (None: what suits the device); `context_tokens` lowers the
    model's window.
    """

    max_rows: int = 8
    max_pending: int = 32
    prefill_chunk: int | None = None
    context_tokens: int | None = None
