"""Commands, files and the full window in a pseudo-terminal; a session that outlives its process.

Thread: any
"""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.chat.terminal import Talk, script

pytestmark = pytest.mark.wire

HELLO = {"tokens": ["Hello ", "**there**", "."]}
ECHO = {"when": "ECHO", "tokens": ["seen"]}
HANG = {"when": "hang", "tokens": ["Partial ", "answer"], "then": "hang"}


def opened(folder: Path, *arguments: str, context_tokens: int = 2000, **env: str) -> Talk:
    model = script(folder, HANG, ECHO, HELLO, context_tokens=context_tokens)
    return Talk(folder / "home", "--model", model, *arguments, **env)  # type: ignore[arg-type]


def test_a_file_goes_into_the_message_and_a_binary_one_is_refused(tmp_path: Path) -> None:
    """Reports 131 and 122: what is refused comes back to the line, to be changed."""
    (tmp_path / "notes.txt").write_text("the ECHO in the file")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    with opened(tmp_path) as talk:
        talk.line(f"see @{tmp_path}/notes.txt")
        talk.sees("seen")
        assert f"with `{tmp_path}/notes.txt`, 20 characters" in " ".join(talk.rows())
        talk.line(f"see @{tmp_path}/image.png")
        talk.sees("and only text can go into a message")
        talk.until(lambda: talk.rows()[-1].endswith("image.png"), "the message again")
        talk.send("\x15ECHO")
        talk.enter()
        talk.sees("seen", 2)


def test_undo_retry_edit_and_export(tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nstty -a | grep -q " echo " && echo "ECHO from the editor" > "$1"\n')
    editor.chmod(0o700)
    file = tmp_path / "talk.md"
    with opened(tmp_path, EDITOR=str(editor)) as talk:
        talk.line("Hi")
        talk.sees("Hello there.")
        talk.line("/retry 0.1")
        talk.sees("Hello there.", 2)
        talk.line("/edit")
        talk.sees("asked anew: ECHO from the editor")
        talk.sees("seen")
        talk.line("/undo")
        talk.sees("now with its other answer")
        talk.line(f"/export {file}")
        talk.sees("talk.md")
        talk.line(f"/export {file}")
        talk.until(lambda: "is there already: replace it? [y/N]" in " ".join(talk.rows()), "question")
        talk.send("n")
        talk.sees("nothing was written")
        talk.line("/retry warm")
        talk.sees("error: ")
        talk.line("/sesions")
        talk.sees("did you mean `/sessions`?")
    assert "Hello **there**." in file.read_text()


def test_a_message_is_written_in_the_editor(tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf " and ECHO\\nof two lines" >> "$1"\n')
    editor.chmod(0o700)
    with opened(tmp_path, EDITOR=str(editor)) as talk:
        talk.at_prompt()
        talk.send("begun\x18\x05")
        talk.sees("> begun and ECHO\n  of two lines")
        talk.enter()
        talk.sees("seen")


def test_the_last_answer_goes_to_the_clipboard(tmp_path: Path) -> None:
    with opened(tmp_path) as talk:
        talk.line("Hi")
        talk.sees("Hello there.")
        talk.line("/copy")
        talk.sees("copied 16 characters")
        assert b"\x1b]52;c;" + base64.b64encode(b"Hello **there**.") + b"\x07" in talk.raw


def test_a_stopped_answer_is_gone_on_with(tmp_path: Path) -> None:
    with opened(tmp_path) as talk:
        talk.line("hang")
        talk.sees("Partial answer")
        talk.send("\x03")
        talk.sees("stopped, ")
        talk.line("/continue")
        talk.sees("Partial answer", 2)


@pytest.mark.parametrize(
    ("key", "said"),
    [("d", "the oldest 2 turns will not be sent any more"), ("s", "summing up the oldest"), ("\r", "nothing was sent")],
)
def test_a_full_window_is_a_question(tmp_path: Path, key: str, said: str) -> None:
    """Report 95: never a silent cut. A key typed before the question was there does not answer it."""
    with opened(tmp_path, context_tokens=900) as talk:
        talk.line("one " + "x" * 330)
        talk.sees("Hello there.")
        talk.line("two " + "y" * 330)
        talk.sees("[d]rop the oldest turns, [s]ummarise them, or Enter to stop?")
        assert "tokens and the context window is 900" in " ".join(talk.rows())
        talk.send(key)
        talk.until(lambda: said in " ".join(talk.rows()), said)
        if key == "\r":
            talk.until(lambda: talk.rows()[-1].endswith("yyy"), "the message again")
        else:
            talk.sees("Hello there.", 2)


def test_a_session_is_there_again_after_its_process_was_killed(tmp_path: Path) -> None:
    """kill -9 in the middle of an answer: at most that turn is lost, and the terminal shows where it stood."""
    with opened(tmp_path) as talk:
        talk.line("Hi")
        talk.sees("Hello there.")
        talk.line("hang")
        talk.sees("Partial answer")
        talk.process.kill()
        assert talk.process.wait(30) == -9
    with opened(tmp_path, "--continue") as talk:
        talk.sees("> Hi\nHello there.")
        assert "Partial" not in "".join(talk.rows())
        talk.line("Hi again")
        talk.sees("Hello there.", 2)
        talk.at_prompt()
        counts = [row for row in talk.rows() if "prompt tokens" in row]
        assert int(counts[-1].split()[0]) > 100  # "Hi" alone has 52


def test_sixty_columns_with_wide_characters(tmp_path: Path) -> None:
    """Report 127: what is typed and what comes, in a narrow window."""
    model = script(tmp_path, {"tokens": ["漢字かな" * 20, " 😀", "\n\n| 漢字 | b |\n|---|---|\n| 一 | 二 |\n"]})
    with Talk(tmp_path / "home", "--model", model, columns=60, rows=24) as talk:
        talk.line("漢字を" * 15)
        talk.sees("prompt tokens")
        talk.at_prompt()
        rows = [row.replace(" ", "") for row in talk.rows()]
        text = "".join(rows)
        assert text.count("漢字を") == 15
        assert text.count("漢字かな") == 20 - sum("漢字" in row and "b" in row for row in rows) + 1
        assert "一二" in text
