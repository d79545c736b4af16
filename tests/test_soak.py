"""scripts/soak.py: what it takes for a leak, and what not.

Thread: any
"""

from __future__ import annotations

from collections import Counter

import pytest

from scripts.soak import GROWTH_MB, slope, verdict
from scripts.soak_asks import KINDS, is_fine

pytestmark = pytest.mark.pure

FINE = Counter({("short", "200"): 9, ("cancelled", "left"): 3, ("refused", "400"): 2, ("long", "429"): 1})


def samples(*resident_mb: float, files: int = 15, rows: float = 0) -> list[dict[str, float]]:
    busy = [{"second": 60.0 * at, "resident_mb": mb, "files": 15} for at, mb in enumerate(resident_mb)]
    last = {"second": 60.0 * len(busy), "resident_mb": busy[-1]["resident_mb"], "files": float(files), "idle": 1.0}
    return [*busy, {**last, "lattice_rows": rows, "lattice_queue_depth": 0.0}]


def test_the_line_through_points_is_found() -> None:
    assert slope([0, 1, 2, 3], [5, 7, 9, 11]) == pytest.approx(2)
    assert slope([1], [5]) == 0


def test_memory_that_finds_its_level_is_flat() -> None:
    """A cache that fills in the first third is no leak; nor is noise."""
    told = verdict(samples(200, 400, 590, 600, 605, 598, 603, 600, 602), FINE, 0)
    assert told["faults"] == []
    assert abs(told["risen_mb"]) < 10


def test_memory_that_goes_on_rising_is_told() -> None:
    told = verdict(samples(*(200 + 2 * GROWTH_MB / 8 * at for at in range(12))), FINE, 0)
    assert told["faults"] == [f"memory rose by {told['risen_mb']:.0f} MB"]


@pytest.mark.parametrize(
    ("files", "rows", "went", "status", "named"),
    [
        (30, 0, FINE, 0, "15 files stayed open"),
        (15, 1, FINE, 0, "rows or places in the queue were not given back"),
        (15, 0, FINE + Counter({("tools", "500"): 2}), 0, "tools: 500 (2 times)"),
        (15, 0, FINE + Counter({("refused", "200"): 1}), 0, "refused: 200 (1 times)"),
        (15, 0, FINE, -9, "the server ended with status -9"),
    ],
)
def test_what_else_went_wrong_is_told(
    files: int, rows: float, went: Counter[tuple[str, str]], status: int, named: str
) -> None:
    assert verdict(samples(600, 600, 600, files=files, rows=rows), went, status)["faults"] == [named]


def test_clients_are_of_every_kind() -> None:
    names = {name for name, _ in KINDS}
    assert {"cancelled", "abandoned", "long", "tools", "schema", "streamed", "short"} <= names
    assert is_fine("cancelled", "left") and not is_fine("short", "ConnectionResetError: x")
