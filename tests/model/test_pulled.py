"""The marker that says a folder is ours, and a removal that touches nothing else.

Thread: any
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lattice_cli.errors import ModelError
from lattice_cli.model.pulled import (
    MARKER,
    Pull,
    PulledFile,
    is_complete,
    partial_bytes,
    pull_lock,
    read_marker,
    remove,
    write_marker,
)

pytestmark = pytest.mark.pure

PULL = Pull(
    name="org/tiny",
    source="hub:org/tiny",
    revision="0123",
    licence="mit",
    files=(PulledFile("a.json", 2, "00"), PulledFile("b.safetensors", 5, "11")),
    pulled_at="2026-01-02T03:04:05+00:00",
)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A models folder with one pulled model, `tiny`."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "a.json").write_bytes(b"{}")
    (folder / "b.safetensors").write_bytes(b"12345")
    write_marker(folder, PULL)
    return tmp_path


def test_a_marker_reads_back_as_it_was_written(models: Path) -> None:
    assert read_marker(models / "tiny") == PULL


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"lattice_pull": 2}', '{"lattice_pull": 1}', "\xff"])
def test_a_marker_that_cannot_be_read_marks_nothing(models: Path, text: str) -> None:
    (models / "tiny" / MARKER).write_text(text, encoding="latin-1")
    assert read_marker(models / "tiny") is None


def test_a_model_is_complete_while_every_file_has_its_size(models: Path) -> None:
    assert is_complete(models / "tiny")
    (models / "tiny" / "b.safetensors").write_bytes(b"1234")
    assert not is_complete(models / "tiny")
    (models / "tiny" / "b.safetensors").unlink()
    assert not is_complete(models / "tiny")
    assert not is_complete(models / "nothing")


def test_a_pulled_model_is_removed_with_what_an_interrupted_pull_left(models: Path) -> None:
    area = models / ".partial" / "tiny" / "0124"
    area.mkdir(parents=True)
    (area / "b.safetensors.part").write_bytes(b"123")
    assert partial_bytes(models, "tiny") == 3
    assert remove(models, "tiny") == []
    assert [path.name for path in models.iterdir()] == [".partial"]
    assert [path.name for path in (models / ".partial").iterdir()] == ["tiny.lock"]


def test_a_file_that_somebody_added_stays_with_its_folder(models: Path) -> None:
    (models / "tiny" / "merged.q4").write_bytes(b"mine")
    assert remove(models, "tiny") == ["merged.q4"]
    assert [path.name for path in (models / "tiny").iterdir()] == ["merged.q4"]


def test_a_folder_without_our_marker_is_never_removed(models: Path) -> None:
    """The models folder may be shared with Rust Lattice."""
    (models / "tiny" / MARKER).unlink()
    with pytest.raises(ModelError) as caught:
        remove(models, "tiny")
    assert caught.value.message == f"`{models / 'tiny'}` was not pulled by lattice, so it is left as it is"
    assert (models / "tiny" / "b.safetensors").exists()


def test_a_link_to_a_pulled_model_is_left_alone(models: Path, tmp_path: Path) -> None:
    (models / "alias").symlink_to(models / "tiny")
    with pytest.raises(ModelError):
        remove(models, "alias")
    assert is_complete(models / "tiny")


@pytest.mark.timeout(20)
def test_the_right_to_change_a_model_is_held_by_one(tmp_path: Path) -> None:
    said, order = threading.Event(), list[str]()

    def second() -> None:
        with pull_lock(tmp_path, "tiny", said.set):
            order.append("second")

    with pull_lock(tmp_path, "tiny"):
        thread = threading.Thread(target=second)
        thread.start()
        assert said.wait(10)
        with pull_lock(tmp_path, "other"):  # another model is not held up
            order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
