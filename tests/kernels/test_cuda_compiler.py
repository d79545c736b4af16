"""Kernels as machine code that stays on disk. NVRTC is played, and the real one is asked where it is installed.

Thread: any
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.kernels import cuda_compiler
from lattice_cli.kernels.cuda_compiler import Compiler, Uncompilable

pytestmark = pytest.mark.pure


class Nvrtc:
    """Machine code is the text backwards; a text with `wrong` does not compile."""

    def __init__(self, version: tuple[int, int] = (13, 0)) -> None:
        self.version, self.compiled, self.options = version, 0, list[bytes]()
        self.alive = 0

    def nvrtcVersion(self, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = self.version
        return 0

    def nvrtcCreateProgram(self, _program: Any, text: bytes, _name: bytes, *_headers: Any) -> int:
        self.text = text
        self.alive += 1
        return 0

    def nvrtcCompileProgram(self, _program: Any, count: int, options: Any) -> int:
        self.compiled += 1
        self.options = list(options)[:count]
        return 6 if b"wrong" in self.text else 0

    def nvrtcGetProgramLogSize(self, _program: Any, size: Any) -> int:
        size._obj.value = 30
        return 0

    def nvrtcGetProgramLog(self, _program: Any, room: Any) -> int:
        room.value = b"k.cu(3): error: no such thing"
        return 0

    def nvrtcGetCUBINSize(self, _program: Any, size: Any) -> int:
        size._obj.value = len(self.text)
        return 0

    def nvrtcGetCUBIN(self, _program: Any, room: Any) -> int:
        room.raw = self.text[::-1]
        return 0

    def nvrtcDestroyProgram(self, _program: Any) -> int:
        self.alive -= 1
        return 0


def compiler(folder: Path | None, nvrtc: Nvrtc, capability: tuple[int, int] = (9, 0), said: Any = None) -> Compiler:
    return Compiler(capability, folder, (said if said is not None else []).append, nvrtc)  # type: ignore[arg-type]


def test_what_was_compiled_once_is_read_from_then_on(tmp_path: Path) -> None:
    folder, nvrtc, said = tmp_path / "gpu", Nvrtc(), list[str]()
    first = compiler(folder, nvrtc, said=said)
    assert (first.code("k", "abc"), first.code("k", "xyz")) == (b"cba", b"zyx")
    assert nvrtc.options == [b"--gpu-architecture=sm_90", b"--std=c++17"] and nvrtc.alive == 0
    assert len(said) == 1 and "once" in said[0]
    quiet: list[str] = []
    assert compiler(folder, nvrtc, said=quiet).code("k", "abc") == b"cba"
    assert nvrtc.compiled == 2 and not quiet
    assert compiler(folder, nvrtc, (8, 0)).code("k", "abc") == b"cba"
    assert compiler(folder, Nvrtc((13, 1))).code("k", "abc") == b"cba"
    assert nvrtc.compiled == 3  # another GPU's, and another compiler's, are others
    assert all(re.fullmatch(r"[0-9a-f]{40}\.cubin", file.name) for file in folder.iterdir())


@pytest.mark.parametrize("damage", [lambda whole: whole[:-1], lambda whole: b"x" + whole[1:], lambda _whole: b""])
def test_damaged_code_is_compiled_again(tmp_path: Path, damage: Any) -> None:
    nvrtc = Nvrtc()
    compiler(tmp_path, nvrtc).code("k", "abc")
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert compiler(tmp_path, nvrtc).code("k", "abc") == b"cba" and nvrtc.compiled == 2
    assert compiler(tmp_path, nvrtc).code("k", "abc") == b"cba" and nvrtc.compiled == 2


def test_without_a_place_to_keep_it_it_still_compiles(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for folder in (None, tmp_path / "file" / "gpu"):
        assert compiler(folder, Nvrtc()).code("k", "abc") == b"cba"


def test_a_text_that_does_not_compile_says_why(tmp_path: Path) -> None:
    nvrtc = Nvrtc()
    with pytest.raises(Uncompilable, match=r"`k` does not compile: k.cu\(3\): error: no such thing"):
        compiler(tmp_path, nvrtc).code("k", "wrong")
    assert nvrtc.alive == 0 and not [*tmp_path.iterdir()]


def test_no_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(Uncompilable, match="not found"):
        Compiler((9, 0))


def test_the_real_compiler_makes_code_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    try:
        cuda_compiler._load()
    except Uncompilable as reason:
        pytest.skip(str(reason))
    made = Compiler((9, 0), tmp_path).code("k", 'extern "C" __global__ void k(float* x) { x[0] = 1; }')
    assert made[:4] == b"\x7fELF"
    with pytest.raises(Uncompilable, match="error"):
        Compiler((9, 0), tmp_path).code("k", "no C++")
