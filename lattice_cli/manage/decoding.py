"""Whether the default model's steps are fused on this machine's NVIDIA GPU, for doctor.

Knows whom to ask, and that doctor must go on; decides nothing (kernels.cuda_gpu does).

Thread: any (mlx runs on the calling one)
"""

from __future__ import annotations

import logging

from lattice_cli.errors import LatticeError
from lattice_cli.settings import Home

log = logging.getLogger("lattice.kernels")

FUSED = "its steps are fused on the GPU, once they are checked at loading"
_FAULTS = (
    ArithmeticError, AttributeError, ImportError, LookupError, MemoryError, OSError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip


def decoding_line(home: Home) -> str | None:
    """In words, those of loading; None where there is no such GPU and for a scripted model. mlx must be there.

    Cost: 0.03-0.2 s, or 0.6 s more (model/outline.py); no weights are read.
    """
    from lattice_cli.kernels import platform

    if platform.backend_name() != "cuda":
        return None
    try:
        return _line(home)
    except LatticeError as error:
        return f"unknown: {error.message}"
    except _FAULTS as error:  # of mlx-lm's modules, which take a config as they find it: doctor has more to say
        log.debug("whether steps are fused cannot be told", exc_info=error)
        first = next(iter(str(error).strip().splitlines()), "")
        return f"unknown: {first or type(error).__name__}"


def _line(home: Home) -> str | None:
    from lattice_cli.kernels import cuda_gpu
    from lattice_cli.model.locate import locate
    from lattice_cli.model.outline import outline

    gpu = cuda_gpu.read_gpu()
    reason = "the steps are not fused: the native kernels are off" if home.kernels == "off" else cuda_gpu.unfit(gpu)
    if gpu is None or reason is not None:
        return reason
    source = locate(home.default_model, home)
    if source.kind == "script":
        return None
    return cuda_gpu.doubt(outline(source.path), gpu) or FUSED
