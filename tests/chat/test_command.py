"""The whole command beside a terminal: sessions, servers, JSON and schemas, as a shell and a script see them.

Thread: any
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chat.foreign import DONE, chunk, data, foreign
from tests.chat.terminal import LATTICE, Talk, environment, script

pytestmark = pytest.mark.wire

TELL = {"when": "tell", "tell": True, "tokens": ["."]}
HANG = {"when": "hang", "tokens": ["Partial"], "then": "hang"}
FAULT = {"when": "fault", "tokens": ["some ", "text"], "raise_at": 1}
JSON = {"when": "person", "tokens": ['{"name"', ': "Zed"', "}"]}
LONG = {"when": "long", "tokens": ['{"name"', ': "Ze', 'd"}']}
THINKS = {"when": "think", "tokens": ["<think>", "Hm.", "</think>", "\n\nYes."]}
HELLO = {"tokens": ["Hello ", "there."]}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
KEYS: dict[str, str | None] = {"LATTICE_API_KEY": None, "OPENAI_API_KEY": None}


@pytest.fixture
def model(tmp_path: Path) -> str:
    replies = (TELL, HANG, FAULT, JSON, LONG, THINKS, HELLO)
    return script(tmp_path, *replies, think=["<think>", "</think>"], context_tokens=2000)


def chat(
    folder: Path, *arguments: str, stdin: bytes | None = None, **env: str | None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*LATTICE, "chat", "--quiet", *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        env=environment(folder / "home", **{**KEYS, **env}),
        timeout=60,
    )


def database(folder: Path) -> Path:
    return folder / "home" / "chat" / "sessions.sqlite3"


def prompt_of(done: subprocess.CompletedProcess[bytes]) -> str:
    """What the scripted model was asked."""
    return str(json.loads(done.stdout.decode().removesuffix(".\n"))["prompt"])


# Sessions.


def test_a_session_goes_on_by_name_and_as_the_latest_with_its_model(tmp_path: Path, model: str) -> None:
    assert chat(tmp_path, "--model", model, "--session", "france", "-p", "Hi").stdout == b"Hello there.\n"
    assert chat(tmp_path, "--session", "france", "-p", "And?").stdout == b"Hello there.\n"
    prompt = prompt_of(chat(tmp_path, "--continue", "-p", "tell me", "--system", "Be brief."))
    assert "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello there.<|im_end|>" in prompt
    assert prompt.count("<|im_start|>user") == 3
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>")


def test_one_answer_is_not_kept_unless_a_session_is_named(tmp_path: Path, model: str) -> None:
    chat(tmp_path, "--model", model, "-p", "Hi")
    assert not database(tmp_path).exists()
    chat(tmp_path, "--model", model, "--session", "a", "--no-save", "-p", "Hi")
    with sqlite3.connect(database(tmp_path)) as check:
        assert check.execute("SELECT count(*) FROM sessions").fetchone() == (0,)
    check.close()
    assert stat.S_IMODE(database(tmp_path).stat().st_mode) == 0o600


def test_a_chat_that_is_not_saved_leaves_nothing_on_the_disk(tmp_path: Path, model: str) -> None:
    """Neither the conversation nor the line's history."""
    with Talk(tmp_path / "home", "--model", model, "--no-save") as talk:
        talk.line("my secret")
        talk.at_prompt()
        talk.line("/exit")
        assert talk.ends() == 0
    assert b"secret" not in b"".join(file.read_bytes() for file in (tmp_path / "home").rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--continue",), b"error: there is no session to go on with\n"),
        (("--session", "7"), b"error: there is no session 7\n"),
        (("--session", " "), b"error: `--session` needs a name\n"),
        (("--session", "a", "--continue"), b"error: `--continue` and `--session` both name a session\n"),
    ],
)
def test_a_session_that_cannot_be_is_a_usage_error(
    tmp_path: Path, model: str, arguments: tuple[str, ...], sentence: bytes
) -> None:
    done = chat(tmp_path, "--model", model, "-p", "Hi", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.splitlines(keepends=True)[0] == sentence


def test_a_session_that_fills_the_window_is_never_cut_in_silence(tmp_path: Path, model: str) -> None:
    """In a pipe nobody can be asked: the numbers, what to do, and a status of its own."""
    chat(tmp_path, "--model", model, "--session", "a", "-p", "x" * 900)
    done = chat(tmp_path, "--session", "a", "-p", "y" * 950)
    assert (done.returncode, done.stdout) == (5, b"")
    first, _, hint = done.stderr.decode().splitlines()
    assert first.startswith("error: the prompt has 1973 tokens") and "the context window is 2000 tokens" in first
    assert hint == "hint: `lattice chat --session NAME` in a terminal can shorten the conversation"
    assert chat(tmp_path, "--session", "a", "-p", "Hi").stdout == b"Hello there.\n"


def test_a_session_whose_model_is_gone_says_so_and_goes_on_with_another(tmp_path: Path, model: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    chat(tmp_path, "--model", script(gone, HELLO), "--session", "a", "-p", "Hi")
    (gone / "bot.json").unlink()
    done = chat(tmp_path, "--continue", "-p", "tell")
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.endswith(
        b"hint: that is who the session was held with; name another with `--model` or `--url`\n"
    )
    assert prompt_of(chat(tmp_path, "--continue", "--model", model, "-p", "tell")).count("<|im_start|>user") == 2


def test_a_damaged_file_is_a_sentence_and_the_answer_comes(tmp_path: Path, model: str) -> None:
    database(tmp_path).parent.mkdir(parents=True)
    database(tmp_path).write_bytes(b"no database" * 1000)
    done = chat(tmp_path, "--model", model, "--session", "a", "-p", "Hi")
    assert (done.returncode, done.stdout) == (0, b"Hello there.\n")
    (warning,) = done.stderr.decode().splitlines()
    assert warning.startswith("warning: the saved sessions in `") and "was set aside as `" in warning
    assert prompt_of(chat(tmp_path, "--session", "a", "-p", "tell")).count("<|im_start|>user") == 2


# One JSON object.


def test_json_is_one_object_with_all_that_is_known(tmp_path: Path, model: str) -> None:
    done = chat(tmp_path, "--model", model, "--json", "-p", "think")
    assert (done.returncode, done.stderr) == (0, b"")
    (line,) = done.stdout.splitlines()
    said = json.loads(line)
    assert said.pop("timing").keys() == {"first_token_s", "decode_s"}
    assert said == {
        "answer": "Yes.",
        "reasoning": "Hm.",
        "finish_reason": "stop",
        "usage": {
            "prompt_tokens": 55,
            "completion_tokens": 4,
            "total_tokens": 59,
            "cached_tokens": 0,
            "reasoning_tokens": 2,
        },
        "model": "bot",
    }


def test_json_says_where_an_answer_was_cut(tmp_path: Path, model: str) -> None:
    said = json.loads(chat(tmp_path, "--model", model, "--json", "--max-tokens", "1", "-p", "Hi").stdout)
    assert (said["answer"], said["reasoning"], said["finish_reason"]) == ("Hello ", None, "length")


def test_json_of_a_failure_is_no_object(tmp_path: Path, model: str) -> None:
    done = chat(tmp_path, "--model", model, "--json", "-p", "fault")
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"error: generation failed\n")


def test_json_after_ctrl_c_has_what_came(tmp_path: Path, model: str) -> None:
    process = subprocess.Popen(
        [*LATTICE, "chat", "--model", model, "--json", "-p", "hang"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path / "home"),
    )
    assert process.stderr is not None
    assert process.stderr.readline() == b"loading bot\n"
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    out, err = process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in err
    if out:  # else it was still loading
        assert json.loads(out)["finish_reason"] == "cancelled"


def test_json_of_a_terminal_without_a_question_is_a_usage_error(tmp_path: Path, model: str) -> None:
    import pty

    master, slave = pty.openpty()
    try:
        done = subprocess.run(
            [*LATTICE, "chat", "--model", model, "--json"],
            stdin=slave,
            capture_output=True,
            env=environment(tmp_path / "home"),
            timeout=60,
        )
    finally:
        os.close(master)
        os.close(slave)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: `--json` needs one question\n")


# Schemas.


def schema_file(folder: Path, schema: Any = SCHEMA) -> str:
    file = folder / "schema.json"
    file.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return str(file)


def test_a_schema_binds_the_answer(tmp_path: Path, model: str) -> None:
    done = chat(tmp_path, "--model", model, "--schema", schema_file(tmp_path), "-p", "person")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"name": "Zed"})


def test_an_answer_that_the_schema_forbids_is_a_failure(tmp_path: Path, model: str) -> None:
    done = chat(tmp_path, "--model", model, "--schema", schema_file(tmp_path), "-p", "Hi")
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: ")


def test_an_answer_that_was_cut_does_not_pass_for_json(tmp_path: Path, model: str) -> None:
    done = chat(tmp_path, "--model", model, "--schema", schema_file(tmp_path), "-p", "long", "--max-tokens", "2")
    assert done.returncode == 1
    assert done.stderr == b"error: the answer does not follow the schema: it was cut\n\nhint: more `--max-tokens`\n"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "holds no JSON"),
        ("[]", "holds no JSON schema: it must be an object"),
        (None, "cannot be read: No such file or directory"),
        ('{"type": "nonsense"}', "schema"),
    ],
)
def test_a_schema_that_cannot_be_used_is_a_sentence(tmp_path: Path, model: str, schema: str | None, words: str) -> None:
    file = schema_file(tmp_path, schema) if schema is not None else str(tmp_path / "none.json")
    done = chat(tmp_path, "--model", model, "--schema", file, "-p", "person")
    assert (done.returncode, done.stdout) == (2 if schema != '{"type": "nonsense"}' else 1, b"")
    assert words in done.stderr.decode().splitlines()[0]


# A server elsewhere.


def test_a_server_answers_in_the_same_way(tmp_path: Path) -> None:
    """Nothing but the answer on stdout; its key comes from the environment and is never said."""
    with foreign(chunk("**Hi**"), chunk(finish="stop"), DONE) as server:
        done = chat(tmp_path, "--url", server.url, "-p", "Hello", "--temperature", "0", OPENAI_API_KEY="sk-secret")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"**Hi**\n", b"")
        (body,) = server.asked
        assert (body["model"], body["temperature"], "max_tokens" in body) == ("first", 0, False)
        assert server.headers[-1]["authorization"] == "Bearer sk-secret"
        chat(tmp_path, "--url", server.url, "-p", "Hello", OPENAI_API_KEY="sk-secret", LATTICE_API_KEY="ours")
        assert server.headers[-1]["authorization"] == "Bearer ours"
        chat(tmp_path, "--url", server.url, "-p", "Hello", "--api-key", "typed", LATTICE_API_KEY="ours")
        assert server.headers[-1]["authorization"] == "Bearer typed"


def test_a_session_with_a_server_goes_on_with_it(tmp_path: Path) -> None:
    with foreign(chunk("Hi", "stop"), DONE) as server:
        chat(tmp_path, "--url", server.url, "--model", "second", "--session", "s", "-p", "Hello", "--api-key", "sk-1")
        chat(tmp_path, "--continue", "-p", "And?")
        assert [body["model"] for body in server.asked] == ["second", "second"]
        assert [message["content"] for message in server.asked[1]["messages"]] == ["Hello", "Hi", "And?"]
    assert b"sk-1" not in database(tmp_path).read_bytes()


@pytest.mark.parametrize(
    ("frames", "how", "status", "words"),
    [
        ((chunk("Half"),), {}, 3, "broke off"),
        ((data({"error": {"message": "out of memory"}}),), {}, 3, "failed in the middle of the answer: out of memory"),
        ((b'{"error": {"message": "no such model"}}',), {"status": 404}, 3, "status 404: no such model"),
        (
            (b'{"error": {"message": "x", "code": "context_length_exceeded"}}',),
            {"status": 400},
            5,
            "refuses the prompt: x",
        ),
    ],
)
def test_what_goes_wrong_there_is_one_sentence_and_a_status(
    tmp_path: Path, frames: tuple[bytes, ...], how: dict[str, Any], status: int, words: str
) -> None:
    with foreign(*frames, **how) as server:
        done = chat(tmp_path, "--url", server.url, "-p", "Hello")
    assert done.returncode == status
    assert words in done.stderr.decode().splitlines()[0]
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--url", "http://127.0.0.1:9", "--threads", "2"), "`--threads` is for a model of this machine"),
        (("--url", "http://127.0.0.1:9", "--kernels", "off"), "`--kernels` is for a model of this machine"),
        (("--url", "127.0.0.1:9"), "`127.0.0.1:9` is no http address"),
        (("--api-key", "x"), "`--api-key` is for a server, and `--url` names none"),
    ],
)
def test_options_that_would_do_nothing_are_refused(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    done = chat(tmp_path, "-p", "Hello", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith(f"error: {sentence}")


def test_json_of_a_server_that_counts_nothing_has_no_counts(tmp_path: Path) -> None:
    with foreign(chunk("Hi", "stop"), DONE) as server:
        said = json.loads(chat(tmp_path, "--url", server.url, "--json", "-p", "Hello").stdout)
    assert (said["answer"], said["usage"], said["model"]) == ("Hi", None, "first")


def test_a_schema_that_a_server_does_not_keep_to_is_a_failure(tmp_path: Path) -> None:
    with foreign(chunk("Sure! {", "stop"), DONE) as server:
        done = chat(tmp_path, "--url", server.url, "--schema", schema_file(tmp_path), "-p", "Hello")
        assert server.asked[0]["response_format"]["json_schema"]["schema"] == SCHEMA
    assert (done.returncode, done.stderr) == (
        1,
        b"error: the answer does not follow the schema: the server did not keep to it\n",
    )


def test_ctrl_c_ends_an_answer_of_a_server(tmp_path: Path) -> None:
    with foreign(chunk("Part"), hangs=True) as server:
        process = subprocess.Popen(
            [*LATTICE, "chat", "--quiet", "--url", server.url, "-p", "Hello"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(tmp_path / "home", **KEYS),
        )
        assert process.stdout is not None
        assert process.stdout.read(4) == b"Part"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"\n", b"")
        assert process.returncode == 130
        assert server.left.wait(60)


# Completion.


def completed(folder: Path, *words: str) -> list[str]:
    """What a shell would offer for the last of `words`."""
    line = " ".join(("lattice", *words))
    env = {"_LATTICE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    code = "import sys; sys.argv = ['lattice']; from lattice_cli.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        capture_output=True,
        text=True,
        env=environment(folder / "home", **env),
        timeout=60,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"mlx.core", "mlx_lm", "transformers", "falcon", "numpy"}
    return done.stdout.split("\n")[:-1]


def test_a_shell_completes_models_sessions_and_options(tmp_path: Path, model: str) -> None:
    for name in ("org--repo", "tiny", ".partial"):
        (tmp_path / "home" / "models" / name).mkdir(parents=True)
    chat(tmp_path, "--model", model, "--session", "france", "-p", "Hi")
    assert completed(tmp_path, "chat", "--model", "") == ["org/repo", "tiny"]
    assert completed(tmp_path, "chat", "--model", "org") == ["org/repo"]
    assert completed(tmp_path, "serve", "--model", "t") == ["tiny"]
    assert completed(tmp_path, "models", "rm", "t") == ["tiny"]
    assert completed(tmp_path, "pull", "smol") == ["smollm2-135m"]
    assert completed(tmp_path, "chat", "--session", "f") == ["france"]
    assert completed(tmp_path, "chat", "--sess") == ["--session"]


def test_completion_is_installed_by_an_option(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"{shlex.join(LATTICE)} --install-completion && true",
        ],  # which shell it is it sees by its parent
        capture_output=True,
        text=True,
        env=environment(tmp_path / "home", HOME=str(tmp_path)),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "_LATTICE_COMPLETE=complete_bash" in (tmp_path / ".bash_completions" / "lattice.sh").read_text()
