"""stdout is data, stderr is talk, and neither stops a program because of a character.

Thread: any
"""

from __future__ import annotations

import io
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lattice_cli.console import (
    PlainProgress,
    configure_logging,
    fail,
    is_live,
    megabytes,
    progress,
    say,
    status,
    suspendable,
    table,
)
from lattice_cli.errors import UsageError

pytestmark = pytest.mark.pure


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def colour_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stderr one."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


@pytest.fixture
def loggers() -> Iterator[None]:
    """Put the process's logging back as it was."""
    root, ours = logging.getLogger(), logging.getLogger("lattice")
    before = (root.handlers, root.level, ours.level)
    yield
    root.handlers, level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)


def test_an_error_is_a_sentence_and_apart_from_it_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    fail(UsageError("no such thing", hint="try `other`"))
    fail(UsageError("nothing to add"))
    assert capsys.readouterr() == ("", "error: no such thing\n\nhint: try `other`\nerror: nothing to add\n")


def test_a_terminal_sees_the_words_error_and_hint_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = colour_terminal(monkeypatch)
    fail(UsageError("no such thing", hint="try `other`"))
    assert terminal.getvalue() == "\x1b[1;31merror:\x1b[0m no such thing\n\n\x1b[1;36mhint:\x1b[0m try `other`\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "")])
def test_no_escape_bytes_where_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Report 128."""
    terminal = colour_terminal(monkeypatch)
    monkeypatch.setenv(name, value)
    fail(UsageError("no such thing", hint="try `other`"))
    say("an aside", aside=True)
    assert terminal.getvalue() == "error: no such thing\n\nhint: try `other`\nan aside\n"


def test_forced_colour_does_not_make_a_pipe_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build services set FORCE_COLOR for everybody; a file with escape bytes is of no use to them."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert is_live(io.StringIO()) is False


@pytest.mark.wire
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PYTHONIOENCODING": "ascii"}, b"? caf?\n?  size\nab  1\n"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, b"? caf?\n?  size\nab  1\n"),
        ({"PYTHONIOENCODING": "utf-8"}, "😀 café\n三  size\nab  1\n".encode()),
    ],
)
def test_what_a_stream_cannot_encode_is_replaced(environment: dict[str, str], expected: bytes) -> None:
    """Report 130: an emoji took the program down, and in one tool a status line's failure failed the request."""
    code = (
        "from lattice_cli.console import *\n"
        "stdout_console().print('\\U0001f600 caf\\xe9')\n"
        "say('\\U0001f600 talk')\n"
        "table(['\\u4e09', 'size'], [['ab', '1']])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, timeout=60, check=True)
    assert done.stdout == expected


def test_a_terminal_breaks_talk_between_words_but_never_inside_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint cut in the middle of a word is hard to read; a command with a line break in it cannot be pasted."""
    terminal = colour_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    command = "`pip install 'lattice-cli[cpu]' --index-url https://example.org/simple`"
    fail(UsageError("one two three " * 6 + "end", hint=f"to mend it, run {command} and then try it again"))
    assert terminal.getvalue() == (
        "error: " + "one two three " * 5 + "one\n"
        "two three end\n"
        "\n"
        "hint: to mend it, run\n"
        f"{command} and then\n"
        "try it again\n"
    )


def test_talk_nobody_listens_to_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon starts programs with stderr closed: Python then has None there."""
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stderr", stream)
        say("hello")
        fail(UsageError("no such thing"))


def test_a_table_in_a_file_is_aligned_by_cells() -> None:
    file = io.StringIO()
    table(["name", "size", "where"], [["三行", "1.0 MB", "/a"], ["smollm2", "92.1 MB", "/b c"]], file)
    assert file.getvalue() == (
        "name     size     where\n"  #
        "三行     1.0 MB   /a\n"
        "smollm2  92.1 MB  /b c\n"
    )


def test_a_table_in_a_narrow_terminal_loses_no_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path cut with three dots cannot be used."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    file, path = Terminal(), "/a/very/long/path/to/a/model/folder"
    table(["name", "where"], [["smollm2", path]], file)
    _, *rows = file.getvalue().splitlines()
    assert max(map(len, rows)) <= 30
    assert "".join(row[9:].strip() for row in rows) == path


def test_progress_without_a_terminal_is_a_line_at_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("model.gguf") as shown:
        for done in range(0, 101):
            shown.update(done * 1_000_000, 100_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"model.gguf: {done}.0 MB ({done}% of 100.0 MB)" for done in range(10, 101, 10)]


def test_progress_of_unknown_size_is_a_line_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0
    shown = PlainProgress("model.gguf", lambda: now_s)
    for now_s in (1.0, 29.0, 31.0, 60.0, 62.0):
        shown.update(int(now_s * 1000), None)
    assert capsys.readouterr().err == "model.gguf: 31 kB\nmodel.gguf: 62 kB\n"


def test_a_status_without_a_terminal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Report 128: spinner frames in a file."""
    with status("loading bot"):
        pass
    assert capsys.readouterr() == ("", "loading bot\n")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 kB"), (850_000, "850 kB"), (103_600_000, "103.6 MB"), (1_800_000_000, "1.8 GB")]
)
def test_sizes_are_in_powers_of_ten(count: int, text: str) -> None:
    assert megabytes(count) == text


def test_json_logging_is_one_object_a_line(loggers: None, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    logging.getLogger("lattice.engine").info("row %d\nended", 3)
    logging.getLogger("lattice.engine").debug("not shown")
    logging.getLogger("somebody.else").info("not shown either")
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert record.pop("time")[:2] == "20"
    assert record == {"level": "info", "logger": "lattice.engine", "message": "row 3\nended"}


def test_text_logging_names_level_and_logger(loggers: None, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("warning", "text")
    logging.getLogger("lattice.engine").warning("slow")
    assert capsys.readouterr() == ("", "WARNING lattice.engine: slow\n")


@pytest.mark.parametrize(("level", "fmt", "param"), [("loud", "text", "--log-level"), ("info", "xml", "--log-format")])
def test_an_unknown_level_or_format_is_a_usage_error(level: str, fmt: str, param: str) -> None:
    with pytest.raises(UsageError) as caught:
        configure_logging(level, fmt)
    assert caught.value.param == param


@pytest.mark.wire
def test_importing_the_console_imports_no_rich() -> None:
    """`lattice --help` must stay under 0.4 s."""
    code = "import lattice_cli.console, sys; print(any(name.split('.')[0] == 'rich' for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_a_stop_gives_the_terminal_back_from_the_inside_out() -> None:
    """Ctrl-Z in a load of a chat: the spinner's cursor first, then the line's modes; and back the other way."""
    done: list[str] = []
    before = signal.signal(signal.SIGTSTP, lambda signum, frame: done.append("stopped"))
    try:
        with (
            suspendable(lambda: done.append("line"), lambda: done.append("line again")),
            suspendable(lambda: done.append("spinner"), lambda: done.append("spinner again")),
        ):
            for _ in range(2):
                signal.raise_signal(signal.SIGTSTP)
    finally:
        signal.signal(signal.SIGTSTP, before)
    assert done == ["spinner", "line", "stopped", "line again", "spinner again"] * 2
