"""CUDA text into machine code by NVIDIA's run-time compiler (NVRTC), which comes with mlx's CUDA back end; what was
compiled stays on disk, because mlx 0.32 compiles its users' kernels anew in every process, a second or more for each.

Knows text and bytes; knows no arrays. Source: NVRTC's documentation, https://docs.nvidia.com/cuda/nvrtc.

Thread: worker
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("lattice.kernels")

LIBRARIES = ("libnvrtc.so.13", "libnvrtc.so.12")
_DIGEST_BYTES = 32
_LINE = "compiling the GPU's kernels for this model, once (up to a minute)"


class Uncompilable(Exception):
    """Why there is no machine code."""


class Compiler:
    """For GPUs of a compute capability. `folder` keeps what was compiled (None: nothing is kept); `say` hears a line
    before the first compilation.

    Raises from its beginning: Uncompilable where there is no NVRTC.
    """

    def __init__(
        self,
        capability: tuple[int, int],
        folder: Path | None = None,
        say: Callable[[str], object] = lambda _line: None,
        library: ctypes.CDLL | None = None,
    ) -> None:
        self._nvrtc = library or _load()
        self._folder = folder
        self._say: Callable[[str], object] | None = say
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self._options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17"]
        self._key = f"{major.value}.{minor.value} {self._options}"

    def code(self, name: str, text: str) -> bytes:
        """Machine code (a cubin) of a text whose kernels are `extern "C"`. Cost: a few milliseconds where it is kept,
        else up to ten seconds.

        Raises: Uncompilable.
        """
        key = hashlib.sha256(f"{self._key}\n{text}".encode()).hexdigest()[:40]
        kept = self._read(key)
        if kept is not None:
            return kept
        if self._say is not None:
            self._say(_LINE)
            self._say = None
        made = self._compile(name, text)
        self._keep(key, made)
        return made

    def _compile(self, name: str, text: str) -> bytes:
        program = ctypes.c_void_p()
        given = (ctypes.byref(program), text.encode(), f"{name}.cu".encode(), 0, None, None)
        self._check(self._nvrtc.nvrtcCreateProgram(*given))
        try:
            options = (ctypes.c_char_p * len(self._options))(*(option.encode() for option in self._options))
            status = self._nvrtc.nvrtcCompileProgram(program, len(self._options), options)
            if status != 0:
                said = self._text(program, "ProgramLog").decode("utf-8", "replace").strip("\0").strip()
                log.debug("%s: %s", name, said)
                raise Uncompilable(f"`{name}` does not compile: {said.splitlines()[0] if said else status}")
            return self._text(program, "CUBIN")
        finally:
            self._nvrtc.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        room = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._nvrtc, f"nvrtcGet{what}")(program, room))
        return room.raw

    def _check(self, status: int) -> None:
        if status != 0:
            raise Uncompilable(f"NVRTC answered with status {status}")

    # On disk: a digest, then the code. What was cut short or damaged is compiled again.

    def _read(self, key: str) -> bytes | None:
        if self._folder is None:
            return None
        try:
            whole = (self._folder / f"{key}.cubin").read_bytes()
        except OSError:
            return None
        digest, code = whole[:_DIGEST_BYTES], whole[_DIGEST_BYTES:]
        return code if code and hashlib.sha256(code).digest() == digest else None

    def _keep(self, key: str, code: bytes) -> None:
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(hashlib.sha256(code).digest() + code)
            os.replace(file.name, self._folder / f"{key}.cubin")
        except OSError as error:
            log.debug("compiled kernels are not kept: %s", error)


def _load() -> ctypes.CDLL:
    """Raises: Uncompilable."""
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise Uncompilable("NVRTC is not found")
