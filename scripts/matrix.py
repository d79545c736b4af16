"""Checks docs/capability-matrix.md: `python scripts/matrix.py`, status 1 and a line for each fault.

In a column of ours every cell that does not begin with "no" names at least one proof in backticks, and every proof
there exists: a case of fixtures/parity (SUITE/NAME), a tiny model (models/NAME) or a test (FILE::NAME). Standard
library only.

Thread: any
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
MATRIX = ROOT / "docs" / "capability-matrix.md"
OURS = "ours, "
PROOF = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a column of ours."""

    line: int
    capability: str
    policy: str
    text: str

    @property
    def proofs(self) -> list[str]:
        return PROOF.findall(self.text)


def cells(text: str) -> Iterator[Cell | str]:
    """The cells of our columns, in order; a str is a fault of the table itself."""
    columns: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            columns = []
            continue
        row = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not columns:
            columns = row
        elif len(row) != len(columns):
            yield f"line {number}: {len(row)} cells, and there are {len(columns)} columns"
        elif set("".join(row)) - set("- "):
            for column, cell in zip(columns, row, strict=True):
                if column.startswith(OURS):
                    yield Cell(number, row[0], column.removeprefix(OURS), cell)


def faults(text: str) -> list[str]:
    """Everything that is wrong with a matrix."""
    found: list[str] = []
    seen = 0
    for cell in cells(text):
        if isinstance(cell, str):
            found.append(cell)
            continue
        seen += 1
        where = f"line {cell.line}: {cell.capability}, {cell.policy}"
        if not cell.proofs and not re.match(r"no\b", cell.text):
            found.append(f"{where}: `{cell.text}` names no proof")
        found.extend(f"{where}: {fault}" for proof in cell.proofs if (fault := fault_of(proof, cell.policy)))
    return found if seen else ["there are no cells of ours"]


def fault_of(proof: str, policy: str) -> str | None:
    """Why a proof is none for this policy."""
    file, _, test = proof.partition("::")
    if test:
        return None if test in tests_in(ROOT / file) else f"there is no test `{proof}`"
    suite, _, name = proof.partition("/")
    if suite == "models":
        there = (ROOT / "fixtures" / "models" / name / "golden.json").is_file()
        return None if there else f"there is no tiny model `{name}`"
    if suite != policy:
        return f"`{proof}` is no case of the suite `{policy}`"
    return None if name in cases_in(suite) else f"there is no case `{proof}`"


@cache
def tests_in(file: Path) -> frozenset[str]:
    """The test functions of a file."""
    if not file.is_file():
        return frozenset()
    return frozenset(re.findall(r"^def (test_\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE))


@cache
def cases_in(suite: str) -> frozenset[str]:
    """The names in a suite's file."""
    file = ROOT / "fixtures" / "parity" / f"{suite}.jsonl"
    lines = file.read_text(encoding="utf-8").split("\n") if file.is_file() else []
    return frozenset(json.loads(line)["name"] for line in lines if line.strip())


def main() -> int:
    found = faults(MATRIX.read_text(encoding="utf-8"))
    for fault in found:
        print(f"docs/capability-matrix.md: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
