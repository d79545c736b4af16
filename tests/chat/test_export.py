"""A talk as a file: Markdown or JSON, whole or not at all, and over nothing that is there.

Thread: any
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lattice_cli.chat.export import FileThere, write_export
from lattice_cli.chat.session import Session
from lattice_cli.errors import LatticeError, UsageError

pytestmark = pytest.mark.pure
TALK = Session("Be brief.").asked("Sky?\n\nWhich colour?").answered("**Blue**.\n", "It is day.\nSo blue.")


def export(path: Path, session: Session = TALK, *, replace: bool = False) -> str:
    return write_export(str(path), session, "bot", "Sky?", replace=replace)


def test_markdown_has_a_heading_for_each_turn(tmp_path: Path) -> None:
    file = tmp_path / "talk.md"
    assert export(file) == f"written: 1 message with the answers, to `{file}`"
    assert file.read_text() == (
        "# Sky?\n\n## System\n\nBe brief.\n\n## You\n\nSky?\n\nWhich colour?\n\n"
        "## bot\n\n> It is day.\n> So blue.\n\n**Blue**.\n"
    )


def test_json_is_what_a_server_takes(tmp_path: Path) -> None:
    export(tmp_path / "talk.JSON")
    assert json.loads((tmp_path / "talk.JSON").read_text()) == {
        "title": "Sky?",
        "model": "bot",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Sky?\n\nWhich colour?"},
            {"role": "assistant", "content": "**Blue**.\n", "reasoning_content": "It is day.\nSo blue."},
        ],
    }


def test_a_file_that_is_there_is_replaced_only_on_request(tmp_path: Path) -> None:
    file = tmp_path / "talk.md"
    file.write_text("mine")
    with pytest.raises(FileThere, match="is there already"):
        export(file)
    assert file.read_text() == "mine"
    export(file, replace=True)
    assert file.read_text().startswith("# Sky?")
    assert [path.name for path in tmp_path.iterdir()] == ["talk.md"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.md").write_text("mine")
    (tmp_path / "talk.md").symlink_to("real.md")
    with pytest.raises(FileThere):
        export(tmp_path / "talk.md")
    export(tmp_path / "talk.md", replace=True)
    assert (tmp_path / "talk.md").is_symlink()
    assert (tmp_path / "real.md").read_text().startswith("# Sky?")


@pytest.mark.parametrize(
    ("name", "words"),
    [("talk.txt", "ends neither"), ("talk", "ends neither"), ("", "say which file"), ("d.md", "is a folder")],
)
def test_a_name_that_cannot_be_used_is_a_sentence(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "d.md").mkdir()
    with pytest.raises(UsageError, match=words):
        write_export(str(tmp_path / name) if name else "", TALK, "bot", "Sky?")


def test_nothing_is_left_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(LatticeError, match="cannot be written: No such file or directory"):
        export(tmp_path / "none" / "talk.md")
    with pytest.raises(UsageError, match="nothing to write"):
        export(tmp_path / "talk.md", Session("Be brief."))
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full at the last moment."""
    file = tmp_path / "talk.md"
    file.write_text("mine")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LatticeError, match="No space left on device"):
        export(file, replace=True)
    assert file.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["talk.md"]


def test_half_a_letter_does_not_stop_it(tmp_path: Path) -> None:
    export(tmp_path / "talk.md", Session().asked("\ud83d").answered("ok"))
    assert "## You\n\n?\n" in (tmp_path / "talk.md").read_text()


@pytest.mark.parametrize("typed", ["{0}/my talk.md", '"{0}/my talk.md"', "'{0}/my talk.md'", "{0}/my\\ talk.md"])
def test_a_name_with_a_blank_may_be_typed_as_for_a_shell(tmp_path: Path, typed: str) -> None:
    """Tab spells it `my\\ talk.md`, and a file of that name was written."""
    write_export(typed.format(tmp_path), TALK, "bot", "Sky?")
    assert [file.name for file in tmp_path.iterdir()] == ["my talk.md"]
