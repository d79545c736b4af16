"""Which kernels ran on an NVIDIA GPU, and when, as CUPTI tells it (NVIDIA's CUDA Profiling Tools Interface, "Activity
API"). It is part of the CUDA toolkit and of the package nvidia-cuda-cupti; where it is not found there is a reason.

Knows ctypes and records; knows no engine. A run that is traced is slower, so its times are not measured.

Thread: any (CUPTI calls back on threads of its own)
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LIBRARIES = ("libcupti.so.13", "libcupti.so.12", "libcupti.so")
_CONCURRENT_KERNEL = 10  # CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, of single kernels of a CUDA graph, too
_BUFFER_BYTES = 8 << 20
_ALIGNED = 8


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel that ran; seconds are those of `time.monotonic`."""

    name: str
    begin_s: float
    end_s: float


class _Record(ctypes.Structure):
    """The beginning of CUpti_ActivityKernel4 and all later ones."""

    _pack_ = 1
    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("_before", ctypes.c_uint8 * 12),
        ("start", ctypes.c_uint64),  # ns
        ("end", ctypes.c_uint64),
        ("_between", ctypes.c_uint8 * 72),
        ("name", ctypes.c_char_p),
    ]


_REQUESTED = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_COMPLETED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class GpuTrace:
    """`begin`, work, wait for the GPU, `end`. Raises: OSError from its beginning where CUPTI is not there."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._cupti = library
        self._kernels: list[tuple[str, int, int]] = []
        self._buffers: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._offset_ns = 0
        self._callbacks = _REQUESTED(self._give), _COMPLETED(self._take)  # kept: CUPTI calls them until the end
        self._check(library.cuptiActivityRegisterCallbacks(*self._callbacks))

    def begin(self) -> None:
        self._kernels.clear()
        now_ns = ctypes.c_uint64()
        self._check(self._cupti.cuptiGetTimestamp(ctypes.byref(now_ns)))
        self._offset_ns = time.monotonic_ns() - now_ns.value
        self._check(self._cupti.cuptiActivityEnable(_CONCURRENT_KERNEL))

    def end(self) -> list[Kernel]:
        """What ran since `begin`, the first first."""
        self._check(self._cupti.cuptiActivityFlushAll(1))
        self._check(self._cupti.cuptiActivityDisable(_CONCURRENT_KERNEL))
        offset = self._offset_ns
        found = [Kernel(name, (start + offset) / 1e9, (end + offset) / 1e9) for name, start, end in self._kernels]
        return sorted(found, key=lambda kernel: kernel.begin_s)

    def _give(self, buffer: object, size: object, most: object) -> None:
        room = ctypes.create_string_buffer(_BUFFER_BYTES + _ALIGNED)
        place = -(-ctypes.addressof(room) // _ALIGNED) * _ALIGNED
        self._buffers[place] = room
        buffer[0], size[0], most[0] = place, _BUFFER_BYTES, 0  # type: ignore[index]

    def _take(self, _context: int, _stream: int, buffer: int, _size: int, used: int) -> None:
        record = ctypes.c_void_p()
        while self._cupti.cuptiActivityGetNextRecord(ctypes.c_void_p(buffer), used, ctypes.byref(record)) == 0:
            one = ctypes.cast(record, ctypes.POINTER(_Record)).contents
            if one.kind == _CONCURRENT_KERNEL:
                self._kernels.append(((one.name or b"").decode(), one.start, one.end))
        del self._buffers[buffer]

    def _check(self, status: int) -> None:
        if status != 0:
            raise OSError(f"CUPTI answered with status {status}")


def find_trace(backend: str | None) -> GpuTrace | str:
    """A trace of the GPU that mlx uses, or why there is none."""
    if backend != "cuda":
        return "kernels are traced on NVIDIA GPUs only"
    for name in LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.cuptiActivityGetNextRecord.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        try:
            return GpuTrace(library)
        except OSError as error:
            return str(error)
    return "libcupti is not found (pip install nvidia-cuda-cupti, and its folder on LD_LIBRARY_PATH)"


@dataclass(frozen=True, slots=True)
class Load:
    """What steps of decoding had of the GPU: `kernels` and `busy_s` of each."""

    kernels: float
    busy_s: float


def load_of(kernels: Sequence[Kernel], begin_s: float, end_s: float, steps: int) -> Load | None:
    """Of the kernels that began between two moments, for `steps` steps; None where nothing ran."""
    inside = [kernel for kernel in kernels if begin_s <= kernel.begin_s < end_s]
    if not inside or steps <= 0:
        return None
    return Load(len(inside) / steps, _covered(inside) / steps)


def _covered(kernels: Iterable[Kernel]) -> float:
    """Seconds in which at least one of them ran; they come in order."""
    total_s = until_s = 0.0
    for kernel in kernels:
        total_s += max(0.0, kernel.end_s - max(kernel.begin_s, until_s))
        until_s = max(until_s, kernel.end_s)
    return total_s
