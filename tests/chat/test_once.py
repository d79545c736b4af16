"""`--prompt` and piped text: one answer on stdout, nothing else there, and an exit status.

Thread: any
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chat.terminal import LATTICE, environment, script

pytestmark = pytest.mark.wire

HELLO = {"tokens": ["\n\nHello ", "**there** ", {"hex": "f09f"}, {"hex": "9880"}, ".\n", "\n"]}
ECHO = {"when": "Summarise:\n\nline one\n\n  line two", "tokens": ["both"]}
REPLACED = {"when": "�quoted�", "tokens": ["replaced"]}
FAULT = {"when": "fault", "tokens": ["some ", "text"], "raise_at": 1}
HANG = {"when": "hang", "tokens": ["Partial"], "then": "hang"}
LOADING = b"loading bot\n"
FULL = Path("/dev/full")


def chat(
    folder: Path, *arguments: str, stdin: bytes | None = None, env: dict[str, str | None] | None = None
) -> subprocess.CompletedProcess[bytes]:
    model = script(folder, ECHO, REPLACED, FAULT, HANG, HELLO, context_tokens=1000)
    return subprocess.run(
        [*LATTICE, "chat", "--model", model, *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        env=environment(folder / "home", **(env or {})),
        timeout=60,
    )


def test_a_prompt_gives_the_answer_alone_ending_with_one_line_break(tmp_path: Path) -> None:
    done = chat(tmp_path, "--prompt", "Hi")
    assert (done.returncode, done.stdout) == (0, "Hello **there** 😀.\n".encode())
    loading, speed = done.stderr.splitlines(keepends=True)
    assert loading == LOADING
    assert speed.startswith(b"52 prompt tokens, 6 tokens, ")


@pytest.mark.parametrize(
    "env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"FORCE_COLOR": "1"}, {"TERM": None}], ids=lambda env: "".join(env)
)
def test_a_pipe_gets_no_escape_bytes_whatever_the_environment(tmp_path: Path, env: dict[str, str | None]) -> None:
    """Report 128: `echo hi | lattice chat > out.txt 2> err.txt`."""
    done = chat(tmp_path, "--quiet", stdin=b"Hi\n", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello **there** 😀.\n".encode(), b"")


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": None, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_a_stream_that_lacks_a_character_gets_a_question_mark(tmp_path: Path, env: dict[str, str | None]) -> None:
    """Report 130: the program crashed, or a status line's failure failed the request."""
    done = chat(tmp_path, "--prompt", "Hi", env=env)
    assert (done.returncode, done.stdout) == (0, b"Hello **there** ?.\n")
    assert b"Traceback" not in done.stderr


def test_a_piped_document_goes_below_the_prompt(tmp_path: Path) -> None:
    done = chat(tmp_path, "--prompt", "Summarise:", stdin=b"line one\n\n  line two\n")
    assert (done.returncode, done.stdout) == (0, b"both\n")


def test_piped_bytes_that_are_not_utf_8_are_replaced_with_a_warning(tmp_path: Path) -> None:
    """Report 131: `printf '\\x93quoted\\x94' | lattice chat` failed far away with a surrogate error."""
    done = chat(tmp_path, "--quiet", stdin=b"\x93quoted\x94")
    assert (done.returncode, done.stdout) == (0, b"replaced\n")
    assert done.stderr == b"warning: the piped text is not UTF-8; what could not be read was replaced\n"


@pytest.mark.parametrize(
    ("stdin", "arguments", "sentence"),
    [
        (b"", (), b"error: the piped text is empty, so there is nothing to answer\n"),
        (b" \n", (), b"error: the piped text is empty, so there is nothing to answer\n"),
        (None, ("--prompt", ""), b"error: `--prompt` is empty\n"),
        (None, (), b"error: the piped text is empty, so there is nothing to answer\n"),
    ],
)
def test_nothing_to_answer_is_a_usage_error(
    tmp_path: Path, stdin: bytes | None, arguments: tuple[str, ...], sentence: bytes
) -> None:
    """Report 125: the end of piped input."""
    done = chat(tmp_path, *arguments, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.splitlines(keepends=True)[0] == sentence


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--temperature", "nan"),
        ("--temperature", "-1"),
        ("--top-p", "0"),
        ("--top-k", "-1"),
        ("--repetition-penalty", "0"),
        ("--max-tokens", "0"),
        ("--seed", "x"),
        ("--context", "1"),
        ("--log-level", "loud"),
    ],
)
def test_a_bad_value_is_a_usage_error_and_never_another_value(tmp_path: Path, flag: str, value: str) -> None:
    done = chat(tmp_path, "--prompt", "Hi", flag, value)
    assert (done.returncode, done.stdout) == (2, b"")
    assert flag.encode() in done.stderr


def test_a_limit_on_tokens_holds_and_is_told(tmp_path: Path) -> None:
    done = chat(tmp_path, "--prompt", "Hi", "--max-tokens", "2")
    assert (done.returncode, done.stdout) == (0, b"Hello **there** \n")
    assert done.stderr.splitlines()[-1].startswith(b"cut at the limit, 52 prompt tokens, 2 tokens")


def test_a_system_prompt_is_part_of_the_prompt(tmp_path: Path) -> None:
    done = chat(tmp_path, "--prompt", "Hi", "--system", "Be brief.")
    assert b"91 prompt tokens" in done.stderr


def test_a_prompt_over_the_window_names_both_numbers(tmp_path: Path) -> None:
    """Report 95. Nothing is cut in silence, and a script can tell it from other failures."""
    done = chat(tmp_path, "--quiet", "--prompt", "x" * 1000)
    assert (done.returncode, done.stdout) == (5, b"")
    assert done.stderr.startswith(
        b"error: the prompt has 1050 tokens and the context window is 1000 tokens, so there is"
    )


def test_a_failure_in_the_answer_is_one_sentence_and_status_1(tmp_path: Path) -> None:
    done = chat(tmp_path, "--quiet", "--prompt", "fault")
    assert (done.returncode, done.stdout, done.stderr) == (1, b"some \n", b"error: generation failed\n")


def test_a_model_that_cannot_be_loaded_is_a_sentence_a_hint_and_status_3(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{", encoding="utf-8")
    for model, sentence in (
        (f"script:{broken}", f"error: the script `{broken}` is malformed: Input data was truncated\n"),
        (f"{tmp_path}/none", f"error: `{tmp_path}/none` does not exist\n"),
    ):
        done = chat(tmp_path, "--quiet", "--model", model, "--prompt", "Hi")
        assert (done.returncode, done.stdout) == (3, b"")
        assert done.stderr.decode().splitlines(keepends=True)[0] == sentence
        assert b"Traceback" not in done.stderr


def test_a_reader_that_leaves_ends_the_chat_without_a_word(tmp_path: Path) -> None:
    """`lattice chat ... | head -1`: a traceback about a broken pipe."""
    model = script(tmp_path, {"tokens": ["line\n"], "then": "repeat"}, context_tokens=10_000_000)
    with started(tmp_path, model, "--quiet") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_ctrl_c_ends_with_what_was_said_so_far(tmp_path: Path) -> None:
    with started(tmp_path, script(tmp_path, HANG), "--quiet") as process:
        assert process.stdout is not None
        assert process.stdout.read(7) == b"Partial"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"\n", b"")
        assert process.returncode == 130


@pytest.mark.parametrize("reply", [{"when": "hang", "tokens": ["x"], "prefill_ms": 600_000}])
def test_ctrl_c_while_the_prompt_is_read_ends_at_once(tmp_path: Path, reply: dict[str, Any]) -> None:
    with started(tmp_path, script(tmp_path, reply), "--log-level", "debug") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == LOADING
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert out in (b"", b"\n")  # during the load or during the prefill
        assert b"Traceback" not in err


@contextmanager
def started(folder: Path, model: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A chat as a process, killed at the end if it is still there."""
    with subprocess.Popen(
        [*LATTICE, "chat", "--model", model, "--prompt", "hang", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(folder / "home"),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("redirect", "arguments", "sentence"),
    [
        ("<&-", (), "error: stdin is closed, so there is nothing to answer\n"),
        (">&-", ("--prompt", "Hi"), "error: stdout is closed, so there is nowhere to answer\n"),
    ],
)
def test_a_closed_stream_is_a_sentence(
    tmp_path: Path, redirect: str, arguments: tuple[str, ...], sentence: str
) -> None:
    """Programs started by others often lack a stream; Python then has None there."""
    command = [*LATTICE, "chat", "--quiet", "--model", script(tmp_path, HELLO), *arguments]
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {redirect}', *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(tmp_path / "home"),
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines(keepends=True)[0] == sentence


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a disk that is always full")
def test_a_disk_that_is_full_is_a_sentence(tmp_path: Path) -> None:
    with FULL.open("wb") as stdout:
        done = subprocess.run(
            [*LATTICE, "chat", "--quiet", "--model", script(tmp_path, HELLO), "--prompt", "Hi"],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=environment(tmp_path / "home"),
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, b"error: the answer could not be written: No space left on device\n")


def test_thoughts_are_not_part_of_the_answer(tmp_path: Path) -> None:
    thinks = {"tokens": ["<think>", "Hm.", "</think>", "\n\nYes."]}
    (tmp_path / "thinker").mkdir()
    model = script(tmp_path / "thinker", thinks, think=["<think>", "</think>"])
    done = chat(tmp_path, "--quiet", "--prompt", "Hi", "--model", model)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"Yes.\n", b"")
