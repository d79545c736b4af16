"""A model source -> a ready engine. The one place that chooses a backend.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lattice_cli.engine.engine import Engine
from lattice_cli.model.card import ModelCard, ModelSource
from lattice_cli.settings import EngineSettings, Home

if TYPE_CHECKING:
    from lattice_cli.engine.backend import Backend
    from lattice_cli.engine.pace import Pace
    from lattice_cli.engine.prefix import PrefixCache
    from lattice_cli.kernels.blas import BlasReport
    from lattice_cli.kernels.native_choice import Native
    from lattice_cli.model.load import LoadedModel

    Watch = Callable[[Backend], Backend]

CHUNK_TOKENS = 512
# PERF: on an NVIDIA GPU a chunk costs the host 5 ms whatever its length (some 280 launches), and Qwen3.5-0.8B's network
# reads 84,000 tok/s in chunks of 1 x 512, 142,000 of 1 x 2,048 and 202,000 of 8 x 512 (docs/log.md). So chunks are long
# beside replies, too, and rare: a reply pauses for some 15 ms. A row has no more of one than ROW_TOKENS (pace.py).
GPU_CHUNK_TOKENS, GPU_FEWEST_TOKENS, GPU_SPACING_TOKENS = 8192, 2048, 1024
# PERF: mlx's own attention on a CPU computes chunk x context exponentials at 10 ns each, so short chunks read
# smollm2-135m's prompt of 430 tokens 8% faster. The native kernels want long ones: 1,270 tok/s against 770.
SLOW_CPU_CHUNK_TOKENS = 128


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """What the worker owns once a model is loaded. `release` is the thread's very last act; `prefix` is the backend's
    cache, whose `stats` any thread may read (None: a script has none).
    """

    card: ModelCard
    engine: Engine
    release: Callable[[], None] = lambda: None
    prefix: PrefixCache | None = None

    def close(self) -> None:
        """End the engine. The calling thread can do nothing with mlx after this."""
        try:
            self.engine.close()
        finally:
            self.release()


def open_engine(
    source: ModelSource,
    home: Home,
    settings: EngineSettings,
    *,
    tokenizer_dir: Path | None = None,
    watch: Watch = lambda backend: backend,
) -> OpenEngine:
    """Load `source` on the calling thread, which owns it from then on. Cost: seconds.

    `watch` may put itself between engine and backend, as who measures does. Raises: ModelError, InstallError,
    UsageError.
    """
    if source.kind == "script":
        from lattice_cli.engine.scripted import open_script

        card, scripted = open_script(source, settings.context_tokens)
        return OpenEngine(card, Engine(card, watch(scripted), settings))

    def read() -> LoadedModel:
        from lattice_cli.model.load import load

        return load(source, home, tokenizer_dir=tokenizer_dir, context_tokens=settings.context_tokens)

    return open_network(read, home, settings, watch, source.path)


def open_network(
    read: Callable[[], LoadedModel],
    home: Home,
    settings: EngineSettings,
    watch: Watch = lambda backend: backend,
    path: Path | None = None,
) -> OpenEngine:
    """An engine on what `read` loads, on the calling thread, which owns it from then on. `path` is where that lies, if
    it lies anywhere. Raises: as `open_engine`.
    """
    from lattice_cli.kernels import blas, install, native_choice, platform

    products = blas.preload(home)
    platform.check_platform()
    import mlx.core as mx

    from lattice_cli.engine.memory_cost import open_memory
    from lattice_cli.engine.mlx_backend import MlxBackend
    from lattice_cli.engine.prefix_open import open_prefix

    def release() -> None:
        install.take_functions()
        mx.clear_streams()

    # UPSTREAM: a thread that used mlx 0.32 and did not clear its streams aborts the process at exit (status 134).
    try:
        loaded = read()
        native = native_choice.choose(home)
        if native.module is not None:
            install.put_functions(native.module)
        elif native.gpu:
            install.put_gpu_functions()
        pace = _choose_pace(settings, slow_cpu=platform.backend_name() == "cpu" and native.module is None)
        fit = partial(_fit_threads, products, native)
        prefix = open_prefix(loaded.network, loaded.card, path, settings, home)
        if platform.backend_name() == "cuda":
            prefix.spacing_tokens = GPU_SPACING_TOKENS
        memory, card = open_memory(loaded.network, loaded.card, loaded.nbytes, settings, prefix)
        backend = MlxBackend(loaded.network, settings.max_rows, pace.most_tokens, fit, prefix, pace=pace)
    except BaseException:
        release()
        raise
    return OpenEngine(card, Engine(card, watch(backend), settings, memory=memory), release, prefix)


def _choose_pace(settings: EngineSettings, *, slow_cpu: bool) -> Pace:
    from lattice_cli.engine.pace import Pace
    from lattice_cli.kernels.platform import backend_name

    if settings.prefill_chunk is not None:
        return Pace(settings.prefill_chunk, fixed=True)
    if backend_name() == "cuda":
        return Pace(GPU_CHUNK_TOKENS, fewest_tokens=GPU_FEWEST_TOKENS)
    return Pace(SLOW_CPU_CHUNK_TOKENS if slow_cpu else CHUNK_TOKENS)


def _fit_threads(products: BlasReport, native: Native) -> None:
    products.fit_threads()
    native.fit_threads()
