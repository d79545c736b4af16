"""The real model for tests marked `model`: pulled once and kept.

Thread: any
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice_cli.model.gguf_header import read_header
from lattice_cli.model.gguf_tokenizer import build_tokenizer
from lattice_cli.model.tokenizer import FastTokenizer
from tests.model.real import smollm2


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """The GGUF file of smollm2-135m."""
    return smollm2()


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_file: Path) -> FastTokenizer:
    """Its tokenizer, rebuilt from metadata."""
    return build_tokenizer(read_header(smollm2_file))
