"""The text of the kernels in cuda/ as mlx's custom CUDA kernels: compiled on first use, for one network's sizes, by our
own compiler where there is one (`use`), which keeps what it made, else by mlx.

Thread: worker
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Any

from lattice_cli.kernels.cuda_compiler import Compiler, Uncompilable

log = logging.getLogger("lattice.kernels")

Array = Any  # mlx.core.array: this file must be importable without mlx

_SPACE = "lattice_kernels"
_QUOTED = re.compile(r'^#(?:include ".*"|pragma once)\n', re.MULTILINE)
_compiler: Compiler | None = None


def use(compiler: Compiler | None) -> None:
    """Who compiles from now on; None: mlx does."""
    global _compiler
    _compiler = compiler


@cache
def text_of(name: str) -> str:
    """A file of cuda/ without what only files need."""
    return _QUOTED.sub("", (files("lattice_cli.kernels") / "cuda" / name).read_text(encoding="utf-8"))


def sources_digest() -> str:
    """Of all files of cuda/: what one version of them leaves in memory is nothing to another."""
    folder = files("lattice_cli.kernels") / "cuda"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".cuh"))
    return hashlib.sha256("".join(map(text_of, names)).encode()).hexdigest()


class CudaKernel:
    """One kernel: called with arrays, it gives arrays. `threads` of each block, so many `shared_bytes`.

    `plan` is text that defines what the files need; `body` calls into them (`k::`). mlx keeps kernels by name, so the
    name has a digest of the text.
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
        portable, *others = [text_of(source) for source in sources]
        self._header = f"namespace {_SPACE} {{\n{portable}\n{plan}\n{''.join(others)}\n}}\nnamespace k = {_SPACE};\n"
        self._body = body
        self._threads = threads
        self._shared_bytes = shared_bytes
        self._names = tuple(inputs), tuple(outputs)
        digest = hashlib.sha256(f"{self._header}{body}{threads}".encode()).hexdigest()[:16]
        self._name = f"lattice_{name}_{digest}"
        self._run: Callable[..., list[Array]] | None = None

    def __call__(
        self, inputs: Sequence[Array], blocks: int, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]
    ) -> list[Array]:
        if self._run is None:
            self._run = self._made(inputs, dtypes)
        return self._run(
            inputs=list(inputs),
            grid=(blocks * self._threads, 1, 1),
            threadgroup=(self._threads, 1, 1),
            output_shapes=list(shapes),
            output_dtypes=list(dtypes),
        )

    def _made(self, inputs: Sequence[Array], dtypes: Sequence[Any]) -> Callable[..., list[Array]]:
        if _compiler is not None:
            try:
                return self._compiled(_compiler, inputs, dtypes)
            except Uncompilable as reason:
                log.info("%s; mlx compiles it", reason)
        return self._by_mlx()

    def _by_mlx(self) -> Callable[..., list[Array]]:
        import mlx.core as mx

        # mlx gives no way to say launch bounds, without which a thread may get more registers than a block of this
        # size can have: they are put in front of the function's name.
        named = f"custom_kernel_{self._name}"
        inputs, outputs = self._names
        made: Any = mx.fast.cuda_kernel(
            name=self._name,
            input_names=list(inputs),
            output_names=list(outputs),
            source=f"\n#undef {named}\n{self._body}",
            header=f"{self._header}#define {named} __launch_bounds__({self._threads}, 1) {named}\n",
            shared_memory=self._shared_bytes,
        )
        return made  # type: ignore[no-any-return]

    def _compiled(
        self, compiler: Compiler, inputs: Sequence[Array], dtypes: Sequence[Any]
    ) -> Callable[..., list[Array]]:
        """Raises: Uncompilable."""
        import mlx.core as mx

        given, made = self._names
        kinds = [_kind(array.dtype) for array in inputs] + [_kind(dtype) for dtype in dtypes]
        signature = ", ".join(
            f"{'const ' if at < len(given) else ''}{kind}* {name}"
            for at, (kind, name) in enumerate(zip(kinds, (*given, *made), strict=True))
        )
        head = f'extern "C" __global__ void __launch_bounds__({self._threads}, 1) {self._name}({signature})'
        code = compiler.code(self._name, f"{self._header}{head} {{\n{self._body}\n}}\n")
        run: Callable[..., list[Array]] = partial(
            mx.fast.precompiled_cuda_kernel,
            name=self._name,
            compiled_source=code,
            scalars=[],
            shared_memory=self._shared_bytes,
            ensure_row_contiguous=True,
        )
        return run


def _kind(dtype: Any) -> str:
    """How a kernel's text calls a number of this type: 16 bits are only bits there."""
    import mlx.core as mx

    kinds = {
        mx.uint8: "unsigned char", mx.uint32: "unsigned int", mx.int32: "int", mx.float32: "float",
        mx.uint64: "unsigned long long", mx.bfloat16: "unsigned short", mx.float16: "unsigned short", mx.bool_: "bool",
    }  # fmt: skip
    return kinds[dtype]
