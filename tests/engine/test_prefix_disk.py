"""The disk tier: what survives a restart, what is bounded, and what is never trusted.

Thread: any (mlx runs on the test's own thread)
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lattice_cli.engine.engine import Engine
from lattice_cli.engine.mlx_backend import MlxBackend
from lattice_cli.engine.prefix_disk import DiskShelf
from lattice_cli.engine.prefix_file import compose, write_whole
from lattice_cli.engine.prefix_kept import Dump, Keeper
from lattice_cli.engine.prefix_saved import SavedPrefixCache
from lattice_cli.engine.prefix_states import keeper_of
from lattice_cli.model.network import make_caches
from lattice_cli.settings import EngineSettings
from tests.engine import test_prefix_backend
from tests.engine.test_backend import CARD
from tests.engine.test_prefix_backend import Floor, chat_of, cold, said

pytestmark = [pytest.mark.tiny, pytest.mark.timeout(300)]

network = test_prefix_backend.network

KEY = "a" * 64
BUDGET = 100_000_000


class SavedFloor(Floor):
    """A floor whose cache lies in a folder."""

    def __init__(self, network: Any, folder: Path, key: str = KEY, budget: int = BUDGET, keeper: Any = None) -> None:
        kept: Keeper = keeper or keeper_of(make_caches(network))
        self.cache = SavedPrefixCache(kept, BUDGET, DiskShelf(folder, key, budget))
        self.engine = Engine(CARD, MlxBackend(network, 8, 64, prefix=self.cache), EngineSettings())
        self.number = 0


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.prefix"))


def filled(network: Any, folder: Path, ids: tuple[int, ...]) -> str:
    """Ask once, and shut down; the answer."""
    floor = SavedFloor(network, folder)
    text, _ = floor.ask(ids)
    floor.engine.close()
    return text


def test_a_conversation_goes_on_after_a_restart(network: Any, tmp_path: Path) -> None:
    ids = chat_of(1, 150)
    text = filled(network, tmp_path, ids)
    longer = (*ids, *said(text), *chat_of(2, 20))
    again = SavedFloor(network, tmp_path)
    assert again.ask(longer) == (cold(network, longer), 158)
    assert again.ask(ids) == (text, 149)
    again.engine.close()


def test_what_is_idle_saves_and_what_works_does_not(network: Any, tmp_path: Path) -> None:
    """A process that is killed has saved what it had when it was last idle."""
    floor = SavedFloor(network, tmp_path)
    floor.engine.add(floor.job(chat_of(1, 150), max_tokens=40))
    while not floor.engine.idle:
        assert files(tmp_path) == []
        floor.engine.step()
    until_s = time.monotonic() + 60
    while floor.engine.ready_in_s() is not None:
        assert floor.engine.ready_in_s() == 0.2
        floor.engine.step()
        assert time.monotonic() < until_s
    while len(files(tmp_path)) < floor.cache.stats.entries:  # the writer has the last ones
        assert time.monotonic() < until_s
    other = SavedFloor(network, tmp_path)
    assert other.ask(chat_of(1, 150))[1] == 149


def cut_short(data: bytes) -> bytes:
    return data[:-100]


def a_bit_turned(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def nothing(data: bytes) -> bytes:
    return b""


def something_else(data: bytes) -> bytes:
    return b"\x89PNG" + data[4:]


def a_header_too_long(data: bytes) -> bytes:
    return data[:8] + b"\xff\xff\xff\xff" + data[12:]


def longer(data: bytes) -> bytes:
    return data + b"more"


@pytest.mark.parametrize("damage", [cut_short, a_bit_turned, nothing, something_else, a_header_too_long, longer])
def test_a_damaged_file_is_dropped_with_one_line(
    network: Any,
    tmp_path: Path,
    damage: Callable[[bytes], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    ids = chat_of(1, 150)
    text = filled(network, tmp_path, ids)
    damaged = files(tmp_path)
    for file in damaged:
        file.write_bytes(damage(file.read_bytes()))
    with caplog.at_level(logging.WARNING):
        floor = SavedFloor(network, tmp_path)
        assert floor.ask(ids) == (text, 0)
    told = [record.message for record in caplog.records if "is not used" in record.message]
    assert 1 <= len(told) <= len(damaged)
    assert len(set(told)) == len(told)
    floor.engine.close()


def test_files_of_another_model_are_not_looked_at(network: Any, tmp_path: Path) -> None:
    ids = chat_of(1, 150)
    filled(network, tmp_path, ids)
    other = SavedFloor(network, tmp_path, key="b" * 64)
    assert other.ask(ids)[1] == 0
    other.engine.close()
    assert len({file.parent for file in files(tmp_path)}) == 2


def test_a_file_that_was_put_there_is_dropped(
    network: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of another model; or whole, with a right sum, and still no state of this one."""
    folder, ids = tmp_path / KEY[:24], chat_of(1, 150)
    filled(network, tmp_path, chat_of(2, 100))
    write_whole(folder / "foreign.prefix", compose("b" * 64, ids, True, Dump("pages", [b"x" * 100])))
    for number, meta in enumerate(("pages", {"plain": [0], "blocks": [], "others": []}, {"plain": 3}, None, [[]])):
        write_whole(folder / f"{number}.prefix", compose(KEY, ids[: 100 + number], True, Dump(meta, [b"x" * 100])))
    with caplog.at_level(logging.WARNING):
        floor = SavedFloor(network, tmp_path)
        for _ in range(6):
            text, cached = floor.ask(ids)
            if cached:
                break
            floor.cache.clear()
    assert text == cold(network, ids)
    told = [record.message for record in caplog.records]
    assert sum("another model" in line for line in told) == 1
    assert sum("not this model's" in line for line in told) >= 1
    floor.engine.close()


def test_the_folder_is_bounded_and_what_was_not_used_longest_goes(network: Any, tmp_path: Path) -> None:
    filled(network, tmp_path, chat_of(0, 150))
    budget = 4 * sum(file.stat().st_size for file in files(tmp_path))
    for seed in range(1, 10):
        floor = SavedFloor(network, tmp_path, budget=budget)
        floor.ask(chat_of(seed, 150))
        floor.engine.close()
        assert sum(file.stat().st_size for file in files(tmp_path)) <= budget
    last = SavedFloor(network, tmp_path, budget=budget)
    assert last.ask(chat_of(9, 150))[1] == 149
    assert last.ask(chat_of(0, 150))[1] == 0
    last.engine.close()


def test_only_this_user_can_read_it(network: Any, tmp_path: Path) -> None:
    filled(network, tmp_path / "cache", chat_of(1, 50))
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in files(tmp_path / "cache")} == {0o600}


def test_a_disk_that_refuses_costs_one_line_and_no_answer(
    network: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("no folder")
    with caplog.at_level(logging.WARNING):
        floor = SavedFloor(network, tmp_path / "file")
        assert floor.ask(chat_of(1, 50))[0] == cold(network, chat_of(1, 50))
        floor.engine.close()
    assert len([record for record in caplog.records if "on disk is off" in record.message]) == 1


@pytest.mark.parametrize("seed", range(3))
def test_conversations_over_restarts_stay_exact(network: Any, tmp_path: Path, seed: int) -> None:
    draw, talks = random.Random(seed), [chat_of(n, 60) for n in range(3)]
    reused = 0
    for _ in range(4):
        floor = SavedFloor(network, tmp_path)
        for number, ids in enumerate(talks):
            ids = ids[: draw.choice([len(ids), len(ids) // 2])] + chat_of(draw.randrange(99), 30)
            text, cached = floor.ask(ids)
            assert text == cold(network, ids)
            reused += cached
            talks[number] = (*ids, *said(text))
        floor.engine.close()
    assert reused > 200


def test_every_type_of_number_comes_back(tmp_path: Path) -> None:
    from lattice_cli.engine.prefix_dump import NotPortable, pack, unpack

    values = [
        mx.random.normal((2, 3)).astype(dtype)
        for dtype in (mx.float32, mx.float16, mx.bfloat16, mx.int32, mx.uint32, mx.int64, mx.uint8)
    ]
    parts: list[bytes] = []
    told = pack([*values, None, 3, "x", mx.zeros((0, 4))], parts)
    back = unpack(told, parts)
    assert back[-4:-1] == [None, 3, "x"] and back[-1].shape == (0, 4)
    assert all(
        one.dtype == other.dtype and mx.array_equal(one, other) for one, other in zip(values, back, strict=False)
    )
    with pytest.raises(NotPortable):
        pack(object(), parts)
    for wrong in ({"array": 99, "dtype": "float32", "shape": [1]}, {"array": 0, "dtype": "float64", "shape": [1]}, {}):
        with pytest.raises(NotPortable):
            unpack(wrong, parts)
    assert hashlib.sha256(parts[0]).digest() == hashlib.sha256(bytes(memoryview(values[0]))).digest()
