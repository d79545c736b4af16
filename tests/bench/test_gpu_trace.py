"""Records of CUPTI into kernels with moments: the library is played, records are laid out as in NVIDIA's header.

Thread: any
"""

from __future__ import annotations

import ctypes
import struct
import time
from typing import Any

import pytest

from lattice_cli.bench.gpu_trace import GpuTrace, Kernel, find_trace, load_of

pytestmark = pytest.mark.pure

KERNEL, OTHER = 10, 1  # kinds of records
_KEPT = [ctypes.c_char_p(b"first"), ctypes.c_char_p(b"second")]


def packed(kind: int, start: int, end: int, name: ctypes.c_char_p) -> bytes:
    """CUpti_ActivityKernel10 up to its name: `start` is at byte 16, `end` at 24, `name` at 104."""
    address = ctypes.cast(name, ctypes.c_void_p).value
    return struct.pack("<I12xQQ72xQ", kind, start, end, address)


class Cupti:
    """What GpuTrace calls. Its clock is one hour ahead."""

    def __init__(self, records: list[bytes], status: int = 0) -> None:
        self.records, self.status, self.enabled = records, status, False

    def cuptiActivityRegisterCallbacks(self, give: Any, take: Any) -> int:
        self.give, self.take = give, take
        return self.status

    def cuptiGetTimestamp(self, now: Any) -> int:
        now._obj.value = time.monotonic_ns() + 3600 * 10**9
        return 0

    def cuptiActivityEnable(self, kind: int) -> int:
        self.enabled = kind == KERNEL
        return 0

    def cuptiActivityDisable(self, _kind: int) -> int:
        self.enabled = False
        return 0

    def cuptiActivityFlushAll(self, _forced: int) -> int:
        buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(7)
        self.give(ctypes.pointer(buffer), ctypes.pointer(size), ctypes.pointer(most))
        assert buffer.value and buffer.value % 8 == 0 and most.value == 0
        whole = b"".join(self.records)
        assert len(whole) <= size.value
        ctypes.memmove(buffer.value, whole, len(whole))
        self.at = 0
        self.take(None, 0, buffer.value, size.value, len(whole))
        return 0

    def cuptiActivityGetNextRecord(self, buffer: Any, used: int, record: Any) -> int:
        if self.at >= used:
            return 21  # CUPTI_ERROR_MAX_LIMIT_REACHED
        record._obj.value = buffer.value + self.at
        self.at += len(self.records[0])
        return 0


def test_kernels_come_in_order_and_on_our_clock() -> None:
    hour = 3600 * 10**9
    now = time.monotonic_ns() + hour
    cupti = Cupti([packed(KERNEL, now + 500, now + 700, _KEPT[1]), packed(OTHER, now, now + 9, _KEPT[0]),
                   packed(KERNEL, now + 100, now + 200, _KEPT[0])])  # fmt: skip
    trace = GpuTrace(cupti)  # type: ignore[arg-type]
    trace.begin()
    assert cupti.enabled
    first, second = trace.end()
    assert not cupti.enabled and (first.name, second.name) == ("first", "second")
    assert first.begin_s == pytest.approx(time.monotonic(), abs=5)
    assert second.begin_s - first.begin_s == pytest.approx(400e-9, abs=1e-7)
    trace.begin()
    assert len(trace.end()) == 2  # nothing of the first time


def test_a_step_has_its_share_of_kernels_and_of_the_time_in_which_one_ran() -> None:
    kernels = [Kernel("a", 0.9, 1.1), Kernel("b", 1.2, 1.5), Kernel("c", 1.4, 1.6), Kernel("d", 2.0, 2.5)]
    load = load_of(kernels, 1.0, 2.4, 2)
    assert load is not None and load.kernels == 1.5
    assert load.busy_s == pytest.approx((0.4 + 0.5) / 2)  # b and c overlap
    assert load_of(kernels, 3.0, 4.0, 2) is None and load_of(kernels, 1.0, 2.0, 0) is None


def test_why_nothing_is_traced_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "NVIDIA" in str(find_trace("cpu"))

    def missing(_name: str) -> None:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert "libcupti is not found" in str(find_trace("cuda"))
    with pytest.raises(OSError, match="status 15"):
        GpuTrace(Cupti([], status=15))  # type: ignore[arg-type]
