"""The history of messages.

Thread: any
"""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from prompt_toolkit.history import InMemoryHistory

from lattice_cli.chat.line import private_history

pytestmark = pytest.mark.pure


def test_a_history_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "home" / "chat_history"
    private_history(path).append_string("one\ntwo")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(private_history(path).load_history_strings()) == ["one\ntwo"]


def test_a_history_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "chat_history"
    path.write_text("\n# then\n+one\n")
    path.chmod(0o644)
    assert list(private_history(path).load_history_strings()) == ["one"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_where_no_file_can_be_there_is_still_a_history(tmp_path: Path) -> None:
    """A read-only home is no reason not to chat."""
    (tmp_path / "file").write_text("")
    history = private_history(tmp_path / "file" / "chat_history")
    assert isinstance(history, InMemoryHistory)


def test_a_history_that_cannot_be_written_any_more_stops_no_chat(tmp_path: Path) -> None:
    path = tmp_path / "home" / "chat_history"
    history = private_history(path)
    path.unlink()
    path.parent.rmdir()
    history.append_string("one")
    assert history.get_strings() == ["one"]
