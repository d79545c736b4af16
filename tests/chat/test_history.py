"""The history of messages.

Thread: any
"""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from prompt_toolkit.history import InMemoryHistory

from lattice_cli.chat.history import LONGEST, MOST_BYTES, private_history

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


def test_a_history_is_bounded_and_keeps_what_is_newest(tmp_path: Path) -> None:
    """A file that grows with every message of years would be read at each start."""
    path = tmp_path / "chat_history"
    for number in range(60):
        private_history(path).append_string(f"{number} " + "x" * 20_000)
    assert path.stat().st_size <= MOST_BYTES + 25_000
    kept = [text.partition(" ")[0] for text in private_history(path).load_history_strings()]
    assert kept == [str(number) for number in range(59, 59 - len(kept), -1)]
    assert len(kept) > 20
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["chat_history"]


def test_a_huge_message_is_in_the_history_of_its_own_chat_alone(tmp_path: Path) -> None:
    path = tmp_path / "chat_history"
    history = private_history(path)
    history.append_string("y" * (LONGEST + 1))
    assert len(history.get_strings()[-1]) == LONGEST + 1
    assert path.stat().st_size == 0


def test_half_a_character_does_not_stop_the_history(tmp_path: Path) -> None:
    """Report 130: a terminal that sends bytes which are no letters."""
    path = tmp_path / "chat_history"
    private_history(path).append_string("a\udc80b")
    assert list(private_history(path).load_history_strings()) == ["a?b"]
