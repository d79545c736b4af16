"""The committed suites: every case of both seeds and of our own agrees, against servers started for it.

Thread: any
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice_cli.bench.parity import WIRE_SUITES, read_suites, replay_all

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.wire
@pytest.mark.timeout(240)
@pytest.mark.parametrize("suite", WIRE_SUITES)
def test_every_case_of_the_suite_agrees(suite: str) -> None:
    cases = read_suites(FIXTURES, [suite], None)
    verdicts = replay_all(cases, FIXTURES / "models")
    assert len(verdicts) == len(cases[suite]) > 100
    assert [(verdict.case, verdict.divergence) for verdict in verdicts if verdict.word != "agrees"] == []
