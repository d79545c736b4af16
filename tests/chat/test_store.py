"""Sessions on the disk: private, whole after a kill, shared between processes, and set aside when damaged.

Thread: any
"""

from __future__ import annotations

import os
import random
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lattice_cli.chat.keeping import Keeping, ago, checked_name
from lattice_cli.chat.session import Session
from lattice_cli.chat.store import Store
from lattice_cli.chat.store_file import STEPS, session_names
from lattice_cli.chat.store_rows import Saved, title_of
from lattice_cli.errors import StoreFailed, UsageError

pytestmark = pytest.mark.pure

ONE = Session("Be brief.").asked("What is the capital of France?").answered("Paris.", "France: Paris.")
TWO = ONE.asked("And of Spain?").answered("Madrid.")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat" / "sessions.sqlite3"


def write(store: Store, saved: Saved | None, session: Session, name: str | None = None) -> Saved:
    return store.write(saved, session, "bot", None, name)


def test_a_session_comes_back_as_it_was(path: Path) -> None:
    session = ONE.asked("Sum up").answered("ok").summed_up("France.", 2)
    write(Store(path), None, session, "france")
    found = Store(path).find("france")
    assert found is not None
    assert (found.session, found.title, found.model) == (session, "What is the capital of France?", "bot")
    assert Store(path).latest() == found
    assert Store(path).find(str(found.id)) == found
    assert Store(path).find("spain") is None


def test_the_file_and_its_folder_are_the_owners_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        store = Store(path)
        write(store, None, ONE)
        for file in path.parent.iterdir():  # the log of writes, too, while it is open
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert {file.name for file in path.parent.iterdir()} == {path.name, f"{path.name}-wal", f"{path.name}-shm"}
    finally:
        os.umask(before)


def test_a_file_that_others_could_read_is_closed_to_them(path: Path) -> None:
    write(Store(path), None, ONE)
    path.chmod(0o644)
    Store(path).latest()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_only_what_changed_is_written_and_undone_turns_go(path: Path) -> None:
    store = Store(path)
    saved = write(store, write(store, None, TWO), ONE)
    assert saved.session == ONE
    found = Store(path).latest()
    assert found is not None and found.session == ONE
    again = write(store, saved, ONE.asked("And of Italy?").answered("Rome."))
    found = Store(path).find(str(again.id))
    assert found is not None
    assert [turn.text for turn in found.session.turns][2:] == ["And of Italy?", "Rome."]
    assert len(store.listed()) == 1


def test_lists_have_the_latest_first(path: Path) -> None:
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += 60
        return now_s

    store = Store(path, clock=clock)
    first = write(store, None, ONE, "first")
    write(store, None, TWO, "second")
    write(store, first, TWO)
    assert [(one.name, one.messages, one.updated_s) for one in store.listed()] == [
        ("first", 2, 180),
        ("second", 2, 120),
    ]


def test_a_session_that_somebody_else_went_on_with_becomes_two(path: Path) -> None:
    """Two terminals with one session: neither loses a turn."""
    here, there = Store(path), Store(path)
    saved = write(here, None, ONE, "france")
    theirs = there.find("france")
    write(there, theirs, ONE.asked("theirs").answered("1"))
    mine = write(here, saved, ONE.asked("mine").answered("2"))
    assert (mine.id, mine.name) != (saved.id, saved.name)
    texts = [
        [turn.text for turn in found.session.turns][2] for i in (saved.id, mine.id) if (found := here.find(str(i)))
    ]
    assert texts == ["theirs", "mine"]


WRITER = """
import sys
from pathlib import Path
from lattice_cli.chat.session import Session
from lattice_cli.chat.store import Store
store, saved, session = Store(Path(sys.argv[1])), None, Session()
for turn in range(int(sys.argv[3])):
    session = session.asked(f"{sys.argv[2]} {turn}").answered("x" * 2000)
    saved = store.write(saved, session, "bot", None, None)
    print(turn, flush=True)
"""


def writer(path: Path, name: str, turns: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(turns)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.wire
def test_two_processes_write_at_once(path: Path) -> None:
    """Neither blocks the other nor loses a turn. Both also make the file, at the same moment."""
    both = [writer(path, name, 30) for name in ("a", "b")]
    for process in both:
        _, complaints = process.communicate(timeout=60)
        assert (process.returncode, complaints) == (0, "")
    listed = Store(path).listed()
    assert [one.messages for one in listed] == [30, 30]


@pytest.mark.wire
@pytest.mark.parametrize("turns", [0, 1, 5, 12])
def test_a_killed_process_loses_the_running_turn_at_most(path: Path, turns: int) -> None:
    """`kill -9` at some moment after a turn was said to be saved: it is there, and the file is whole."""
    process = writer(path, "a", 10_000)
    assert process.stdout is not None
    for _ in range(turns + 1):
        process.stdout.readline()
    process.kill()
    process.communicate()
    found = Store(path).latest()
    assert found is not None
    assert found.session.questions > turns
    assert [turn.role for turn in found.session.turns] == ["user", "assistant"] * found.session.questions
    with sqlite3.connect(path) as check:
        assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


def garbage(path: Path) -> None:
    path.write_bytes(b"this is no database at all" * 100)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def scratched(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [garbage, cut, scratched], ids=lambda damage: str(damage.__name__))
def test_a_damaged_file_is_set_aside_with_a_sentence(path: Path, damage: Callable[[Path], None]) -> None:
    first = Store(path)
    write(first, None, ONE)
    first.close()
    damage(path)
    damaged, told = path.read_bytes(), []
    store = Store(path, told=told.append)
    assert store.latest() is None
    saved = write(store, None, TWO)
    assert (saved.session, [one.messages for one in store.listed()]) == (TWO, [2])
    (sentence,) = told
    assert sentence.startswith(f"the saved sessions in `{path}` are damaged; the file was set aside as `")
    (aside,) = path.parent.glob("*.damaged-*[0-9]")
    assert aside.read_bytes() == damaged
    assert str(aside) in sentence


@pytest.mark.parametrize("seed", range(25))
def test_whatever_is_scratched_there_is_a_sentence_and_never_a_traceback(path: Path, seed: int) -> None:
    """Pages anywhere in the file are overwritten; what can still be read may be, and saving works in the end."""
    chance = random.Random(seed)
    first = Store(path)
    saved = write(first, None, TWO, "france")
    write(first, saved, TWO.asked("x" * 20_000).answered("y" * 20_000))
    first.close()
    data = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 6)):
        at, length = chance.randrange(len(data)), chance.choice((1, 16, 600, 4096))
        data[at : at + length] = chance.randbytes(len(data[at : at + length]))
    path.write_bytes(data)
    store = Store(path, told=(told := []).append)
    keeping = Keeping(store)
    for look in (store.latest, store.listed, lambda: store.find("france")):
        with suppress(StoreFailed):
            look()
    notes = [keeping.keep(ONE, "bot") for _ in range(2)]
    found = Store(path).latest()
    assert notes[-1] is None or told or "cannot be used" in str(notes)
    assert found is None or found.session == ONE or "cannot be used" in str(notes)


def test_damage_in_the_middle_of_a_talk_loses_nothing_that_is_in_it(path: Path) -> None:
    """What the talk holds is written again, to a new file."""
    store = Store(path, told=(told := []).append)
    saved = write(store, None, ONE)
    store.close()
    garbage(path)
    saved = write(store, saved, TWO)
    assert len(told) == 1
    found = Store(path).latest()
    assert found is not None and found.session == TWO == saved.session


def test_an_older_file_is_brought_up_to_date(path: Path) -> None:
    old = Store(path)
    write(old, None, ONE, "france")
    old.close()
    newer = Store(path, steps=(*STEPS, "ALTER TABLE turns ADD COLUMN said_s REAL; CREATE TABLE more (x)"))
    found = newer.find("france")
    assert found is not None and found.session == ONE
    newer.close()
    with sqlite3.connect(path) as check:
        assert check.execute("PRAGMA user_version").fetchone() == (2,)
        assert check.execute("SELECT count(*) FROM more").fetchone() == (0,)
    check.close()


def test_a_step_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    old = Store(path)
    write(old, None, ONE, "france")
    old.close()
    with pytest.raises(StoreFailed, match="cannot be used"):
        Store(path, steps=(*STEPS, "CREATE TABLE more (x); CREATE TABLE turns (x)")).latest()
    found = Store(path).find("france")
    assert found is not None and found.session == ONE


def test_a_file_of_a_newer_lattice_is_left_alone(path: Path) -> None:
    newer = Store(path, steps=(*STEPS, "CREATE TABLE more (x)"))
    write(newer, None, ONE)
    newer.close()
    with pytest.raises(StoreFailed, match="was written by a newer lattice"):
        Store(path).latest()
    assert newer.latest() is not None


def test_where_nothing_can_be_written_the_talk_goes_on(tmp_path: Path) -> None:
    """The sentence is said once, not after each turn."""
    (tmp_path / "chat").write_text("a file where the folder should be")
    keeping = Keeping(Store(tmp_path / "chat" / "sessions.sqlite3"))
    first = keeping.keep(ONE, "bot")
    assert first is not None and first.startswith("not saved: `") and first.endswith("cannot be written: File exists")
    assert keeping.keep(TWO, "bot") is None


def test_a_disk_that_is_full_for_a_while_costs_no_turn(path: Path) -> None:
    store = Store(path)
    keeping = Keeping(store)
    keeping.keep(ONE, "bot")
    limit = store._connection().execute("PRAGMA page_count").fetchone()[0]
    store._connection().execute(f"PRAGMA max_page_count = {limit}")
    long = TWO.asked("x" * 100_000).answered("y")
    note = keeping.keep(long, "bot")
    assert note is not None and note.endswith("database or disk is full")
    assert keeping.keep(long, "bot") is None  # opened anew, with room
    found = Store(path).latest()
    assert found is not None and found.session == long


def test_a_name_is_given_once(path: Path) -> None:
    keeping, other = Keeping(Store(path)), Keeping(Store(path))
    keeping.keep(ONE, "bot")
    assert keeping.save_as("france", ONE, "bot") == "saved as `france`; `lattice chat --session france` goes on"
    other.keep(TWO, "bot")
    with pytest.raises(UsageError, match="there is a session `france` already"):
        other.save_as("france", TWO, "bot")
    assert keeping.save_as("la france", ONE, "bot").startswith("saved as `la france`")


def test_a_press_of_tab_changes_nothing(path: Path) -> None:
    """Names for a shell, also while a chat has the file open; a damaged file is left for the next chat to tell of."""
    assert session_names(path) == []
    assert not path.parent.exists()
    store = Store(path)
    write(store, None, ONE, "france")
    write(store, None, TWO)
    assert session_names(path) == ["france"]
    store.close()
    assert session_names(path) == ["france"]
    garbage(path)
    assert session_names(path) == []
    assert path.read_bytes().startswith(b"this is no database")
    assert not [file for file in path.parent.iterdir() if "damaged" in file.name]
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def test_without_saving_nothing_is_written_until_it_is_asked_for(path: Path) -> None:
    keeping = Keeping(Store(path), saving=False)
    keeping.keep(ONE, "bot")
    assert not path.exists()
    keeping.save_as("", ONE, "bot")
    keeping.keep(TWO, "bot")
    found = Store(path).latest()
    assert found is not None and found.session == TWO


def test_a_session_is_loaded_by_name_or_number_and_gone_on_with(path: Path) -> None:
    keeping = Keeping(Store(path))
    keeping.keep(ONE, "bot")
    other = Keeping(Store(path))
    other.keep(Session().asked("Hi").answered("Hello"), "bot")
    session, sentence = other.load("1")
    assert (session, sentence) == (ONE, "session 1: What is the capital of France? (1 message)")
    other.keep(TWO, "bot")
    assert [(row[0], row[2], row[3], row[4]) for row in other.rows()] == [
        ("1", "What is the capital of France?", "2", "just now"),
        ("2", "Hi", "1", "just now"),
    ]
    for name, words in (("x", "there is no session `x`"), ("", "say which session")):
        with pytest.raises(UsageError, match=words):
            other.load(name)


def test_a_session_that_another_chat_began_under_the_same_name_says_so(path: Path) -> None:
    """Two chats with `--session both`: the second went on without a name, and nothing was said."""
    here, there = (Keeping(Store(path), name="both") for _ in range(2))
    assert here.keep(ONE, "bot") is None
    assert there.keep(TWO, "bot") == "another chat began `both` meanwhile, so yours goes on as session 2"
    assert there.keep(TWO.asked("More?").answered("No."), "bot") is None


def test_the_title_is_the_first_message_also_when_that_was_edited(path: Path) -> None:
    keeping = Keeping(Store(path))
    keeping.keep(ONE, "bot")
    keeping.keep(Session().asked("And of Italy?").answered("Rome."), "bot")
    assert [row[2] for row in keeping.rows()] == ["And of Italy?"]
    keeping.keep(Session(), "bot")  # all of it taken back
    assert [row[2] for row in keeping.rows()] == ["And of Italy?"]


def test_what_is_said_of_a_saved_session_can_be_pasted_into_a_shell(path: Path) -> None:
    said = Keeping(Store(path)).save_as("two words", ONE, "bot")
    assert said == "saved as `two words`; `lattice chat --session 'two words'` goes on"


@pytest.mark.parametrize("name", ["12", "x" * 81, "a\x1b[31m", "a\u202eb"])
def test_a_name_that_could_be_mistaken_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        checked_name(name)


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ("Hi", "Hi"),
        ("  first\n\n second ", "first second"),
        ("word " * 30, "word word word word word word word word word word word word…"),
        ("x" * 100, "x" * 60 + "…"),
        ("\ud83d half", "? half"),
    ],
)
def test_a_title_is_the_first_message_on_one_line(message: str, title: str) -> None:
    assert title_of(Session().asked(message)) == title


def test_half_a_surrogate_pair_can_be_saved(path: Path) -> None:
    write(Store(path), None, Session().asked("\ud83d").answered("ok\udc80"))
    found = Store(path).latest()
    assert found is not None
    assert [turn.text for turn in found.session.turns] == ["?", "ok?"]


@pytest.mark.parametrize(
    ("seconds", "words"), [(3, "just now"), (60, "1 minute ago"), (7300, "2 hours ago"), (2e5, "2 days ago")]
)
def test_ages_are_for_people(seconds: float, words: str) -> None:
    assert ago(seconds) == words
