"""A kept state as a file: a magic, a header in JSON, the token ids, the bytes of the state, a SHA-256 over all that.

Nothing in a file is believed before the sum over it is right, but its head, which says what it is for.

Thread: any
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lattice_cli.engine.prefix_kept import Dump

MAGIC = b"LATTICE1"
DIGEST_BYTES = 32
_MAX_HEADER_BYTES = 1 << 24
_FIXED_BYTES = len(MAGIC) + 4  # and the header's length


class Damaged(Exception):
    """Why a file is not used."""


def compose(key: str, ids: Sequence[int], trims: bool, dump: Dump) -> list[bytes]:
    """The parts of a file, but for the sum."""
    sizes = [len(part) for part in dump.parts]
    told = {"key": key, "tokens": len(ids), "trims": trims, "meta": dump.meta, "sizes": sizes}
    header = json.dumps(told).encode()
    return [MAGIC + struct.pack("<I", len(header)), header, array("I", ids).tobytes(), *dump.parts]


def write_whole(file: Path, parts: list[bytes]) -> None:
    """Parts and sum, on the disk when this returns; for this user only. Raises: OSError."""
    digest = hashlib.sha256()
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        for part in parts:
            digest.update(part)
            stream.write(part)
        stream.write(digest.digest())
        stream.flush()
        os.fsync(stream.fileno())


def read_head(file: Path, key: str) -> tuple[tuple[int, ...], bool, int]:
    """Ids, whether the state trims, and the bytes of the file. Raises: OSError, Damaged (also for another key)."""
    with file.open("rb") as stream:
        header, at = _header(stream.read(_FIXED_BYTES), stream.read)
        ids = array("I", stream.read(4 * header["tokens"])[: 4 * header["tokens"]])
    nbytes = at + 4 * header["tokens"] + sum(header["sizes"]) + DIGEST_BYTES
    if header["key"] != key:
        raise Damaged("it is of another model")
    if file.stat().st_size != nbytes or len(ids) != header["tokens"]:
        raise Damaged("it is cut short")
    return tuple(ids), header["trims"], nbytes


def read_whole(file: Path, key: str) -> tuple[tuple[int, ...], Dump]:
    """Ids and state of a file whose sum is right. Raises: OSError, Damaged (also for another key)."""
    data = memoryview(file.read_bytes())
    if len(data) < DIGEST_BYTES or hashlib.sha256(data[:-DIGEST_BYTES]).digest() != data[-DIGEST_BYTES:]:
        raise Damaged("it is damaged")
    header, at = _header(bytes(data[:_FIXED_BYTES]), lambda length: bytes(data[_FIXED_BYTES : _FIXED_BYTES + length]))
    if header["key"] != key or at + 4 * header["tokens"] + sum(header["sizes"]) + DIGEST_BYTES != len(data):
        raise Damaged("it is of another model")
    ids = array("I", bytes(data[at : at + 4 * header["tokens"]]))
    at += 4 * header["tokens"]
    parts = []
    for size in header["sizes"]:
        parts.append(bytes(data[at : at + size]))
        at += size
    return tuple(ids), Dump(header["meta"], parts)


def _header(start: bytes, read: Any) -> tuple[dict[str, Any], int]:
    """The header after a file's first bytes, and where it ends. Raises: Damaged."""
    if len(start) < _FIXED_BYTES or start[: len(MAGIC)] != MAGIC:
        raise Damaged("it is no such file")
    (length,) = struct.unpack("<I", start[len(MAGIC) :])
    try:
        header = json.loads(read(length)) if length <= _MAX_HEADER_BYTES else None
    except ValueError:  # no JSON, or no UTF-8
        header = None
    if not isinstance(header, dict) or not _sound(header):
        raise Damaged("its header is no header")
    return header, _FIXED_BYTES + length


def _sound(header: dict[str, Any]) -> bool:
    sizes, tokens = header.get("sizes"), header.get("tokens")
    counts = [tokens, *sizes] if isinstance(sizes, list) else [None]
    whole = all(type(count) is int and 0 <= count < 2**48 for count in counts) and bool(tokens)
    return whole and type(header.get("trims")) is bool and type(header.get("key")) is str and "meta" in header
