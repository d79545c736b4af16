"""The text of the kernels in cuda/ as mlx's custom CUDA kernels: compiled on first use, for one network's sizes.

Thread: worker
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

Array = Any  # mlx.core.array: this file must be importable without mlx

_SPACE = "lattice_kernels"
_INCLUDES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
_QUOTED = re.compile(r'^#(?:include ".*"|pragma once)\n', re.MULTILINE)


@cache
def text_of(name: str) -> str:
    """A file of cuda/ without what only files need."""
    return _QUOTED.sub("", (files("lattice_cli.kernels") / "cuda" / name).read_text(encoding="utf-8"))


class CudaKernel:
    """One kernel: called with arrays, it gives arrays. `threads` of each block, so many `shared_bytes`.

    `plan` is text that defines what the files need; `body` calls into them (`k::`). mlx keeps what it has compiled by
    name, also on disk, so the name has a digest of the text.
    """

    def __init__(
        self,
        name: str,
        sources: Sequence[str],
        plan: str,
        body: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        threads: int,
        shared_bytes: int = 0,
    ) -> None:
        import mlx.core as mx

        portable, *others = [text_of(source) for source in sources]
        header = (
            f"{_INCLUDES}namespace {_SPACE} {{\n{portable}\n{plan}\n{''.join(others)}\n}}\nnamespace k = {_SPACE};\n"
        )
        digest = hashlib.sha256(f"{header}{body}{threads}".encode()).hexdigest()[:16]
        full = f"lattice_{name}_{digest}"
        # mlx gives no way to say launch bounds, without which a thread may get more registers than a block of this
        # size can have: they are put in front of the function's name.
        named = f"custom_kernel_{full}"
        header += f"#define {named} __launch_bounds__({threads}, 1) {named}\n"
        body = f"\n#undef {named}\n{body}"
        self._threads = threads
        self._kernel: Any = mx.fast.cuda_kernel(
            name=full,
            input_names=list(inputs),
            output_names=list(outputs),
            source=body,
            header=header,
            shared_memory=shared_bytes,
        )

    def __call__(
        self, inputs: Sequence[Array], blocks: int, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]
    ) -> list[Array]:
        made: list[Array] = self._kernel(
            inputs=list(inputs),
            grid=(blocks * self._threads, 1, 1),
            threadgroup=(self._threads, 1, 1),
            output_shapes=list(shapes),
            output_dtypes=list(dtypes),
        )
        return made
