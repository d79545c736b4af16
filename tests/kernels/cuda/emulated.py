"""`mx.fast.cuda_kernel` on the emulator: the kernels' own text, compiled by the host's compiler, run thread by thread.

Arrays are evaluated at once and shared with the kernel, which may write into its inputs as on a GPU.

Thread: any
"""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

HERE = Path(__file__).parent
_TYPES = {mx.uint8: "u8", mx.uint32: "u32", mx.int32: "int", mx.float32: "float", mx.uint64: "u64",
          mx.bfloat16: "u16", mx.float16: "u16", mx.bool_: "bool"}  # fmt: skip


class Guarded:
    """An array that nothing but a kernel can read; `mx` refuses it."""

    def __init__(self, array: mx.array) -> None:
        self.array = array
        self.dtype, self.shape = array.dtype, array.shape


def emulated(folder: Path) -> Callable[..., Any]:
    """A stand-in for `mx.fast.cuda_kernel` that keeps what it compiles in a folder."""

    def cuda_kernel(
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
        shared_memory: int = 0,
    ) -> Callable[..., list[mx.array]]:
        built: list[Any] = []

        def run(
            inputs: Sequence[mx.array],
            grid: tuple[int, int, int],
            threadgroup: tuple[int, int, int],
            output_shapes: Sequence[tuple[int, ...]],
            output_dtypes: Sequence[Any],
        ) -> list[mx.array]:
            hidden = [isinstance(one, Guarded) for one in inputs]
            assert "mark" in input_names or not any(hidden), f"{name} touches a pool and is no link of the chain"
            inputs = [one.array if isinstance(one, Guarded) else one for one in inputs]
            outputs = [mx.zeros(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]
            mx.eval(inputs, outputs)
            if not built:
                types = [_TYPES[array.dtype] for array in (*inputs, *outputs)]
                built.append(_compile(folder, name, input_names, output_names, types, source, header))
            kept = [_shared(array) for array in (*inputs, *outputs)]
            pointers = (ctypes.c_void_p * len(kept))(*(one.ctypes.data for one in kept))
            built[0](pointers, grid[0] // threadgroup[0], threadgroup[0], shared_memory)
            return outputs

        return run

    return cuda_kernel


def _shared(array: mx.array) -> Any:
    """Its memory as numpy sees it, which is copied only where it is not in one piece (as mlx does for kernels)."""
    narrow = {2: mx.uint16, 4: mx.uint32, 8: mx.uint64}.get(array.dtype.size, mx.uint8)
    whole = array if array.dtype == mx.bool_ else array.view(narrow)
    mx.eval(whole)
    return np.ascontiguousarray(np.array(whole, copy=False))


def _compile(
    folder: Path,
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    types: Sequence[str],
    source: str,
    header: str,
) -> Any:
    given = [
        f"  {'const ' if at < len(input_names) else ''}{kind}* {one} = ({kind}*)arrays[{at}];"
        for at, (one, kind) in enumerate(zip((*input_names, *output_names), types, strict=True))
    ]
    together = str("wait_grid(a." in header).lower()
    names = ("u8", "u16", "u32", "u64", "block_index", "thread_index")
    text = "\n".join(
        [
            '#include "emulator.h"',
            "namespace lattice_kernels {", *(f"using ::{one};" for one in names), "}",
            header,
            'extern "C" __attribute__((visibility("default")))',
            "void run_kernel(void** arrays, int blocks, int threads, int shared) {",
            *given, f"launch(blocks, threads, shared, {together}, [&] {{", source, "});", "}",
        ]
    )  # fmt: skip
    stem = hashlib.sha256(f"{name}{text}{(HERE / 'emulator.h').read_text()}".encode()).hexdigest()[:20]
    library = folder / f"{stem}.so"
    if not library.exists():
        Path(f"{library}.cpp").write_text(text)
        # Libraries must not share what has the same name in both: each is compiled for another plan.
        apart = ("-fno-gnu-unique", "-fvisibility=hidden", "-fvisibility-inlines-hidden")
        command = ["g++", "-std=c++17", "-O1", "-w", *apart, "-shared", "-fPIC", "-I", str(HERE), f"{library}.cpp"]
        subprocess.run([*command, "-o", str(library)], check=True)
    run = ctypes.CDLL(str(library)).run_kernel
    run.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_int, ctypes.c_int]
    run.restype = None
    return run
