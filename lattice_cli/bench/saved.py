"""Records that were saved: read, and asked for a metric by name.

Thread: any
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from lattice_cli.errors import UsageError

KINDS = ("speed", "load", "compare", "parity")
ALIASES = {
    "decode_tps": "decode_tok_s",
    "prefill_tps": "prefill_tok_s",
    "total_tps": "total_tok_s",
    "ttft_ms": "first_token_ms",
    "itl_ms": "gap_ms",
    "tpot_ms": "token_ms",
}


@dataclass(frozen=True, slots=True)
class Saved:
    """A record and the file it lies in."""

    path: Path
    record: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.record["bench"])

    def blocks(self) -> dict[str, dict[str, Any]]:
        """What has figures of its own, by name: the points of speed and load, the contenders of a comparison."""
        if self.kind == "compare":
            return {f"{one['letter']}: {one['target']}": one for one in self.record["contenders"]}
        return {_name(point): point for point in self.record.get("points", ())}

    def metric(self, name: str) -> dict[str, float]:
        """A metric's value by block (the median of a figure), or of the whole record under the name "". Empty where
        nothing is called so.
        """
        name = ALIASES.get(name, name)
        found = {}
        for block, values in self.blocks().items():
            figure = values.get("figures", {}).get(name)
            value = figure["median"] if figure else values.get(name)
            if _is_number(value):
                found[block] = float(value)
        if not found and _is_number(value := self.record.get(name)):
            return {"": float(value)}
        return found


def read_saved(path: Path) -> Saved:
    """A record of `--save`, or what was on stdout: its last line counts. Raises: UsageError."""
    try:
        lines = path.read_text(encoding="utf-8").strip().splitlines()
        record = json.loads(lines[-1]) if lines else None
    except (OSError, ValueError) as error:
        raise UsageError(f"`{path}` holds no record: {error}") from error
    if not isinstance(record, dict) or record.get("bench") not in KINDS:
        raise UsageError(f"`{path}` holds no record of `lattice bench`", hint="make one with --save FILE")
    if record["bench"] in ("speed", "load") and "points" not in record:
        raise UsageError(f"`{path}` is a record of an older version, without points", hint="measure again")
    return Saved(path, record)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _name(point: dict[str, Any]) -> str:
    from lattice_cli.bench.load_report import heading

    return str(point["name"]) if "name" in point else heading(point)
