"""A test that hangs ends the run, and one with a limit of its own has that one.

Thread: any
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.wire

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("mark", "status", "said"),
    [("", 1, "Timeout (0:00:00.500000)!"), ("@pytest.mark.timeout(60)", 0, "1 passed")],
)
def test_a_limit_of_its_own_is_kept_and_the_common_one_else(tmp_path: Path, mark: str, status: int, said: str) -> None:
    """Some slow tests have half an hour; the common limit ended the whole run at five minutes of them."""
    file = tmp_path / "test_long.py"
    file.write_text(f"import time, pytest\n{mark}\ndef test_long(): time.sleep(1)\n")
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0.5"]
    command = [sys.executable, "-m", "pytest", "-q", "-c", ROOT / "pyproject.toml", *options, file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert said in done.stdout + done.stderr
