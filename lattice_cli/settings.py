"""Frozen settings, and the only reader of environment variables.

Settings are passed in, never fetched: a command builds them once and hands them down.

Thread: any
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lattice_cli.errors import UsageError

DEFAULT_MODEL = "smollm2-135m"
KERNELS = ("off", "exact", "fast")
DEFAULT_KERNELS = "fast"
MOST_THREADS = 1024  # more is a slip of the finger, and so many threads may not even start


@dataclass(frozen=True, slots=True)
class Home:
    """Where our data lies. It may be shared with Rust Lattice: touch only what we put there.

    `offline` forbids any network access (`LATTICE_OFFLINE` set to anything but "" or "0").
    `blas` is `LATTICE_BLAS`: a library path, "none", or None when unset.
    `kernels` is `--kernels`, else `LATTICE_KERNELS`: one of `KERNELS`, "fast" when unset (kernels/native_choice.py).
    `threads` is `--threads`, else `LATTICE_THREADS`: how many compute on a CPU; None follows the cores that are free.
    `default_model` is `LATTICE_SERVE_MODEL`, else `smollm2-135m`.
    """

    root: Path
    models: Path
    offline: bool = False
    blas: str | None = None
    kernels: str = "off"
    threads: int | None = None
    default_model: str = DEFAULT_MODEL

    @property
    def history(self) -> Path:
        """The line history of `lattice chat`."""
        return self.root / "chat_history"

    @property
    def sessions(self) -> Path:
        """The saved conversations of `lattice chat`, in a folder of their own that only this user can enter."""
        return self.root / "chat" / "sessions.sqlite3"


def read_home(env: Mapping[str, str] = os.environ, *, kernels: str | None = None, threads: int | None = None) -> Home:
    """`LATTICE_HOME` (default `~/.lattice`), `LATTICE_MODEL_CACHE` and what goes with them.

    `kernels` and `threads` are what the command line names; then their variables are not looked at.
    Raises: UsageError for a `LATTICE_KERNELS` or `LATTICE_THREADS` that cannot be used.
    """
    root = Path(env.get("LATTICE_HOME") or "~/.lattice").expanduser()
    models = Path(env["LATTICE_MODEL_CACHE"]).expanduser() if env.get("LATTICE_MODEL_CACHE") else root / "models"
    return Home(
        root=root,
        models=models,
        offline=env.get("LATTICE_OFFLINE", "") not in ("", "0"),
        blas=env.get("LATTICE_BLAS") or None,
        kernels=str(kernels) if kernels else _kernels(env.get("LATTICE_KERNELS") or DEFAULT_KERNELS),
        threads=threads or _threads(env.get("LATTICE_THREADS")),
        default_model=env.get("LATTICE_SERVE_MODEL") or DEFAULT_MODEL,
    )


def read_api_key(env: Mapping[str, str] = os.environ) -> str | None:
    """The key for servers elsewhere: `LATTICE_API_KEY`, else `OPENAI_API_KEY`."""
    return env.get("LATTICE_API_KEY") or env.get("OPENAI_API_KEY") or None


def check_serve_keys(env: Mapping[str, str] = os.environ) -> None:
    """Whoever sets the variable means to be protected by it; `"$(cat key)"` is empty where `cat` failed.

    Raises: UsageError where it is set and holds no key.
    """
    if not env.get("LATTICE_API_KEY", "key").strip():
        raise UsageError(
            "`LATTICE_API_KEY` is set and holds no key, so anybody could use the server",
            param="LATTICE_API_KEY",
            hint="unset it for a server without a key",
        )


def _kernels(text: str) -> str:
    if text in KERNELS:
        return text
    raise UsageError(
        f"`LATTICE_KERNELS` is `{text}`, and must be `off`, `exact` or `fast`",
        param="LATTICE_KERNELS",
        hint="leave it unset for what suits this machine",
    )


def _threads(text: str | None) -> int | None:
    if not text:
        return None
    if text.isascii() and text.isdecimal() and len(text) < 6 and 1 <= int(text) <= MOST_THREADS:
        return int(text)
    raise UsageError(
        f"`LATTICE_THREADS` is `{text}`, and must be a number from 1 to {MOST_THREADS}",
        param="LATTICE_THREADS",
        hint="leave it unset to follow the cores that are free",
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`max_rows` jobs run at once and `max_pending` more may wait; `prefill_chunk` tokens, over all
    rows, are read between two steps (None: what suits the device); `context_tokens` lowers the
    model's window. The prefix cache has `cache_bytes` (None: a quarter of the memory there is; 0: there is none), and
    lies in `cache_dir`, too. Replies have `memory_bytes`, the cache's among them (None: what suits the device).
    """

    max_rows: int = 8
    max_pending: int = 32
    prefill_chunk: int | None = None
    context_tokens: int | None = None
    cache_bytes: int | None = None
    cache_dir: Path | None = None
    memory_bytes: int | None = None
