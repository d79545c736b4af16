"""What this machine computes with, which models it has, and what is missing.

Knows where to ask; decides nothing itself (kernels.platform and model.locate do).

Thread: any
"""

from __future__ import annotations

import importlib.metadata
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from lattice_cli import __version__
from lattice_cli.errors import LatticeError
from lattice_cli.settings import Home

# mlx-lm's architectures with caches that cannot be merged into a batch's (engine/lane.py asks the caches themselves).
ROWS_ALONE = frozenset(("afm7", "deepseek_v41", "llama4"))
PACKAGES = ("mlx", "mlx-lm", "transformers", "tokenizers")


@dataclass(frozen=True, slots=True)
class Missing:
    """Something a newcomer lacks. `blocks` is False where everything works without it, only worse."""

    what: str
    hint: str | None
    blocks: bool = True


@dataclass(frozen=True, slots=True)
class Examination:
    """All that doctor says. Sizes in bytes; `gflops` is a float32 matrix product's rate, None where mlx
    cannot be loaded; `kernels` is None where they are not for this machine; `sampling` is what a request that
    names nothing gets from the default model, `template` what its chat template can do, `decoding` whether its
    steps are fused on an NVIDIA GPU (None where there is none).
    """

    version: str
    backend: str
    device: str
    blas: str | None
    kernels: str | None
    gflops: float | None
    cores: int
    memory_bytes: int
    cache_bytes: int
    home: str
    models_folder: str
    free_bytes: int | None
    models: tuple[str, ...]
    default_model: str
    decoding: str | None
    sampling: dict[str, float | int | None] | None
    template: str | None
    packages: dict[str, str]
    missing: tuple[Missing, ...]

    @property
    def ready(self) -> bool:
        """Whether `lattice chat` can answer now, without downloading anything."""
        return not any(missing.blocks for missing in self.missing)


def examine(home: Home) -> Examination:
    """Ask everything. Cost: half a second, of which 0.2 s measuring. The calling thread uses mlx."""
    from lattice_cli.kernels import platform
    from lattice_cli.kernels.limits import default_cache_bytes, memory_bytes, usable_cores
    from lattice_cli.manage.decoding import decoding_line

    missing: list[Missing] = []
    blas, gflops, device = _products(home, missing)
    kernels = _kernels(home, missing) if blas is not None and gflops is not None else None
    models = _models(home, missing)
    return Examination(
        version=__version__,
        backend=platform.backend_name(),
        device=device,
        blas=blas,
        kernels=kernels,
        gflops=gflops,
        cores=usable_cores(),
        memory_bytes=memory_bytes(),
        cache_bytes=default_cache_bytes(),
        home=str(home.root),
        models_folder=str(home.models),
        free_bytes=_free_bytes(home.models),
        models=models,
        default_model=home.default_model,
        decoding=decoding_line(home) if gflops is not None else None,
        sampling=_sampling(home),
        template=_template(home),
        packages=package_versions(),
        missing=tuple(missing),
    )


def _products(home: Home, missing: list[Missing]) -> tuple[str | None, float | None, str]:
    """(BLAS line for a Linux CPU, GFLOP/s, device)."""
    from lattice_cli.kernels import blas, platform
    from lattice_cli.kernels.machine import read_machine

    line = None
    try:
        report = blas.preload(home)
        if report.name != "platform":
            line = f"{report.path or 'mlx-cpu, the reference one'} ({report.reason})"
        platform.check_platform()
    except LatticeError as error:
        missing.append(Missing(error.message, error.hint))
        return line, None, "none"
    if report.slow and home.blas != "none":
        missing.append(Missing("no fast BLAS: prompts are read about 20 times slower", blas.how_to_get(), blocks=False))
    wanted = platform.better_backend(read_machine())
    if wanted:
        missing.append(Missing("there is an NVIDIA GPU here, and MLX is installed for the CPU", wanted, blocks=False))
    return line, blas.measure_gflops(), platform.device_name()


def _kernels(home: Home, missing: list[Missing]) -> str:
    """Which native kernels a Linux CPU computes with; mlx must have been imported."""
    from lattice_cli.kernels import native_choice

    found = native_choice.look(home)
    if found.lacking:
        what = f"no native kernels ({found.reason}): models are about ten times slower"
        missing.append(Missing(what, found.hint, blocks=False))
    if found.isa is not None:
        return f"{home.kernels}, {found.isa} ({found.reason})"
    return "off" if home.kernels == "off" else f"none ({found.reason})"


def _models(home: Home, missing: list[Missing]) -> tuple[str, ...]:
    """Names of the models that can be read; says which cannot, and what brings the default one."""
    from lattice_cli.manage.models import local_models
    from lattice_cli.model.locate import locate

    lines = list(local_models(home))
    for line in lines:
        if line.problem:
            missing.append(Missing(f"model `{line.name}`: {line.problem}", None, blocks=False))
        if line.architecture in ROWS_ALONE:
            alone = f"model `{line.name}` makes one reply at a time: caches of `{line.architecture}` cannot be merged"
            missing.append(Missing(alone, None, blocks=False))
    try:
        locate(home.default_model, home)
    except LatticeError as error:
        missing.append(Missing(f"the default model: {error.message}", error.hint))
    return tuple(line.name for line in lines if not line.problem)


def _template(home: Home) -> str | None:
    """Of the default model; None when it is not here."""
    from lattice_cli.manage.speaking import template_line, template_traits
    from lattice_cli.model.locate import locate

    try:
        source = locate(home.default_model, home)
        return None if source.kind == "script" else template_line(template_traits(source))
    except LatticeError:
        return None  # `_models` has said so


def _sampling(home: Home) -> dict[str, float | int | None] | None:
    """What the default model's generation_config and our built-in values come to; None when it is not here."""
    from lattice_cli.job import Sampling, SamplingChoice, resolve_sampling
    from lattice_cli.model.folder import read_sampling
    from lattice_cli.model.locate import locate
    from lattice_cli.policy import OPENAI

    try:
        source = locate(home.default_model, home)
        choice = read_sampling(source.path) if source.kind == "folder" else SamplingChoice()
    except LatticeError:
        return None  # `_models` has said so
    floor = Sampling(repetition_penalty=OPENAI.repetition_penalty)
    resolved = asdict(resolve_sampling(choice if OPENAI.model_defaults else SamplingChoice(), floor=floor))
    del resolved["logit_bias"]  # no model recommends one
    return resolved


def _free_bytes(folder: Path) -> int | None:
    """Free room where `folder` is or will be."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), None)
    try:
        return shutil.disk_usage(existing).free if existing else None
    except OSError:
        return None


def package_versions() -> dict[str, str]:
    """Versions of the packages that answers depend on, back ends included; absent ones left out."""
    from lattice_cli.kernels.machine import installed_backends

    found = {}
    for name in (*PACKAGES, *sorted(installed_backends())):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
