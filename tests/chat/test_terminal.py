"""`lattice chat` in a pseudo-terminal: keys, pastes, answers, ends.

Thread: any
"""

from __future__ import annotations

import re
import shlex
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chat.terminal import LATTICE, Talk, script

pytestmark = pytest.mark.wire

HELLO = {"tokens": ["Hello ", "**there**", "."]}
HANG = {"when": "hang", "tokens": ["Partial ", "answer"], "then": "hang"}
PREFILL = {"when": "long", "tokens": ["never"], "prefill_ms": 600_000}
LINES = {"when": "lines", "tokens": [f"line {i}\n" for i in range(1, 201)]}
ECHO = {"when": "ECHO", "tokens": ["seen"]}
SLOW = {"when": "slow", "tokens": ["word "] * 20, "token_ms": 50}
FAULT = {"when": "fault", "tokens": ["some ", "text"], "raise_at": 1}


def opened(folder: Path, *arguments: str, **options: object) -> Talk:
    model = script(folder, HANG, PREFILL, LINES, ECHO, SLOW, FAULT, HELLO, context_tokens=2000)
    return Talk(folder / "home", "--model", model, *arguments, **options)  # type: ignore[arg-type]


def test_an_answer_stands_under_its_question_with_its_speed_below(tmp_path: Path) -> None:
    with opened(tmp_path) as talk:
        talk.line("Hi")
        talk.at_prompt()
        rows = talk.rows()
        assert rows[:4] == [
            "bot: 2,000 tokens of context. /help lists the commands, Ctrl-D leaves",
            "",
            "> Hi",
            "Hello there.",
        ]
        assert rows[4].startswith("52 prompt tokens, 3 tokens, ")
        assert rows[4].endswith(" s")
        talk.send("\x04")
        assert talk.ends() == 0
        assert talk.echoes()


def test_ctrl_c_in_an_answer_stops_it_and_keeps_session_and_text(tmp_path: Path) -> None:
    """Report 124: Ctrl-C during an answer ended the chat."""
    with opened(tmp_path) as talk:
        talk.line("hang")
        talk.sees("Partial answer")
        talk.send("\x03")
        talk.sees("stopped, ")
        talk.line("Hi")
        talk.sees("Hello there.")
        talk.at_prompt()
        rows = talk.rows()
        assert rows[3] == "Partial answer"
        # a byte a token: the stopped question (32), the partial answer (47), "Hi" (30), the open turn (22)
        assert rows[-3].split(", ")[:2] == ["131 prompt tokens", "3 tokens"]
        talk.line("/exit")
        assert talk.ends() == 0


def test_ctrl_c_twice_in_an_answer_leaves_and_what_came_is_kept(tmp_path: Path) -> None:
    """Report 124: stops first, leaves then; a session that goes on has the partial answer."""
    with opened(tmp_path) as talk:
        talk.line("hang")
        talk.sees("Partial answer")
        talk.send("\x03")
        talk.sees("stopped, ")
        talk.at_prompt()
        talk.send("\x03")
        assert talk.ends() == 0
        assert talk.echoes()
        assert talk.terminal.cursor_shown
    with opened(tmp_path, "--continue") as talk:
        talk.sees("> hang\nPartial answer")
        talk.line("Hi")
        talk.sees("131 prompt tokens")


def test_ctrl_c_in_a_thought_stops_it_and_says_so(tmp_path: Path) -> None:
    """Report 124. There is no answer to keep then, and what to do is said."""
    reply = {"when": "hang", "tokens": ["<think>", "Let me ", "see."], "then": "hang"}
    model = script(tmp_path, reply, HELLO, think=["<think>", "</think>"])
    with Talk(tmp_path / "home", "--model", model) as talk:
        talk.line("hang")
        talk.sees("│ Let me see.")
        talk.send("\x03")
        talk.sees(", and was stopped")
        talk.sees("the thought was cut before an answer; /continue goes on with it")
        talk.line("Hi")
        talk.sees("Hello there.")
        assert "│" not in "".join(talk.rows())


def test_ctrl_c_twice_while_the_prompt_is_read_leaves(tmp_path: Path) -> None:
    with opened(tmp_path) as talk:
        talk.line("long")
        talk.sees("reading the prompt")
        talk.send("\x03")
        talk.sees("there was no answer")
        talk.at_prompt()
        talk.send("\x03")
        assert talk.ends() == 0


def test_ctrl_c_while_the_prompt_is_read_drops_the_question(tmp_path: Path) -> None:
    """Report 124. Two questions in a row would be refused by many templates."""
    with opened(tmp_path) as talk:
        talk.line("long")
        talk.sees("reading the prompt")
        talk.send("\x03")
        talk.sees("there was no answer, so your message is not kept")
        talk.line("Hi")
        talk.sees("52 prompt tokens, 3 tokens")


def test_ctrl_c_at_the_prompt_clears_the_line(tmp_path: Path) -> None:
    """Report 124: an empty and a half-typed prompt."""
    with opened(tmp_path) as talk:
        talk.at_prompt()
        talk.send("half typed")
        talk.sees("> half typed")
        talk.send("\x03")
        talk.at_prompt()
        talk.send("\x03")
        talk.sees("Ctrl-C again, Ctrl-D or /exit leaves")
        talk.line("Hi")
        talk.sees("52 prompt tokens, 3 tokens")
        talk.at_prompt()
        talk.send("half\x03\x03")
        talk.sees("Ctrl-C again", 2)
        talk.at_prompt()
        talk.send("\x03")
        assert talk.ends() == 0


def test_ctrl_d_leaves_only_from_an_empty_line(tmp_path: Path) -> None:
    """Report 125: on text, inside several lines, on an empty line."""
    with opened(tmp_path) as talk:
        talk.at_prompt()
        talk.send("text")
        talk.sees("> text")
        talk.send("\x04\x1b\rmore")
        talk.sees("  more")
        talk.send("\x04\x03")
        talk.at_prompt()
        talk.send("\x04")
        assert talk.ends() == 0
        assert "Aborted" not in "\n".join(talk.rows())


def test_a_pasted_program_is_one_message(tmp_path: Path) -> None:
    """Reports 122 and 133: tabs, blank lines, CRLF; thirty lines, shown whole, one answer."""
    program = "def ECHO():\r\n" + "".join(f"\tline({i})\r\n\r\n" for i in range(15))
    with opened(tmp_path) as talk:
        talk.at_prompt()
        talk.paste(program)
        talk.sees("line(14)")
        talk.enter()
        talk.sees("seen")
        talk.at_prompt()
        rows = talk.rows()
        start = rows.index("> def ECHO():")
        shown = [row for i in range(15) for row in (f"      line({i})", "")]
        assert rows[start + 1 : start + 30] == shown[:29]
        assert rows.count("seen") == 1
        sent = program.replace("\r\n", "\n").rstrip()
        assert f"{len(sent) + 50} prompt tokens" in rows[-3]


def test_a_new_line_is_made_with_alt_enter(tmp_path: Path) -> None:
    """Report 122: a documented key for a new line, and earlier lines can be edited."""
    with opened(tmp_path) as talk:
        talk.at_prompt()
        talk.send("one\x1b\rtwo\x1b[A!")
        talk.enter()
        talk.sees("Hello there.")
        assert talk.rows()[2:4] == ["> one!", "  two"]


def test_a_paste_of_500_lines_with_exit_among_them_is_one_message(tmp_path: Path) -> None:
    """Report 122: lines of a paste were sent one by one, and one of them ended the chat."""
    paste = "/exit\n" + "".join(f"line {i}\n" if i % 10 else "/exit\n" for i in range(499)) + "ECHO"
    model = script(tmp_path, ECHO, {"tokens": ["not one message"]}, context_tokens=20_000)
    with Talk(tmp_path / "home", "--model", model) as talk:
        talk.at_prompt()
        talk.paste(paste)
        talk.sees("ECHO")
        talk.enter()
        talk.sees("seen")
        talk.at_prompt()
        rows = talk.rows()
        assert [row.strip(" >") for row in rows if row.strip(" >").startswith(("line", "/exit"))] == paste.split("\n")[
            :-1
        ]
        talk.send("\x04")
        assert talk.ends() == 0


def test_nothing_from_outside_steers_the_terminal(tmp_path: Path) -> None:
    """A reply, a thought, names of a model and a file, a system prompt, a session's title, each with sequences that
    set a title, turn text or clear the screen.
    """
    evil = "\x1b]0;title\x07\x1b[2J\x9b2J\u202eevil"
    file = tmp_path / f"{evil[:4]}notes"
    file.write_text("text")
    answer = f"{evil}\n\n```python\n{evil}\n```\n| a |\n|-|\n| {evil} |\n"
    reply = {"tokens": ["<think>", evil, "</think>", answer]}
    model = script(tmp_path, reply, think=["<think>", "</think>"])
    (tmp_path / "bot.json").write_text((tmp_path / "bot.json").read_text().replace('"bot"', '"b\\u001b]0;x\\u0007ot"'))
    with Talk(tmp_path / "home", "--model", model, "--system", evil) as talk:
        talk.at_prompt()
        talk.paste(f"{evil} @{file}")
        talk.enter()
        talk.sees("prompt tokens")
        for command in ("/system", "/sessions", "/think", "/model", "/undo", "/redo", f"/export {tmp_path}/no/{evil}"):
            talk.line(command)
        talk.at_prompt()
        for sequence in ("\x1b]", "\x1b[2J", "\x9b", "\u202e"):
            assert sequence.encode() not in talk.raw


def test_a_large_paste_during_an_answer_waits_for_the_prompt(tmp_path: Path) -> None:
    """Report 123: the rest of a long paste ran in the shell."""
    paste = "".join(f"rm -rf number-{i}\n" for i in range(3000))
    with opened(tmp_path) as talk:
        talk.line("hang")
        talk.sees("Partial answer")
        talk.paste("ECHO\n" + paste)
        talk.send("\x03")
        talk.sees("stopped, ")
        talk.at_prompt()
        talk.line("slow")
        talk.sees("word word")
        talk.paste("ECHO\nrm -rf everything\n")
        talk.sees("> ECHO")
        talk.sees("  rm -rf everything")
        talk.send("\x03")
        talk.at_prompt()
        talk.send("\x04")
        assert talk.ends() == 0
        assert talk.left_over() == b""


def test_what_is_typed_ahead_is_not_in_the_answer_and_is_sent_after_it(tmp_path: Path) -> None:
    with opened(tmp_path) as talk:
        talk.line("slow")
        talk.sees("word word")
        talk.send("ECHO\rhalf")
        talk.sees("seen")
        talk.sees("> half")
        rows = talk.rows()
        assert rows[3] == "word " * 15 + "word"
        assert [row for row in rows if row.startswith(">")] == ["> slow", "> ECHO", "> half"]


def test_a_message_that_nothing_came_of_but_a_failure_is_on_the_line_again(tmp_path: Path) -> None:
    """A server that was away for a moment: the message was gone from line and talk, and nothing said so."""
    model = script(tmp_path, {"when": "dead", "tokens": ["never"], "raise_at": 0}, HELLO)
    with Talk(tmp_path / "home", "--model", model) as talk:
        talk.line("dead")
        talk.sees("error: generation failed")
        talk.until(lambda: talk.rows()[-1] == "> dead", "the message again")
        talk.send("\x15Hi")
        talk.enter()
        talk.sees("Hello there.")


def test_why_a_tall_message_was_not_sent_can_be_seen(tmp_path: Path) -> None:
    """A paste of 5,000 lines that did not fit: it filled the window again, and the sentence was above it."""
    with opened(tmp_path) as talk:
        talk.at_prompt()
        talk.paste("\n".join(f"row {i} of a long paste" for i in range(200)))
        talk.sees("row 199")
        talk.enter()
        talk.sees("there is no room for an answer")
        talk.until(lambda: talk.rows()[-1] == ">", "empty line")
        assert "Up brings it back" in "\n".join(talk.rows()[-4:])
        talk.send("\x1b[A")
        talk.until(lambda: talk.rows()[-1] == "  row 199 of a long paste", "the message")


def test_a_short_message_comes_back_in_a_low_window_too(tmp_path: Path) -> None:
    model = script(tmp_path, {"when": "dead", "tokens": ["never"], "raise_at": 0}, HELLO)
    with Talk(tmp_path / "home", "--model", model, rows=6) as talk:
        talk.line("dead")
        talk.until(lambda: talk.rows()[-1] == "> dead" and "failed" in talk.rows()[-3], "the message again")
        assert "Up brings it back" not in "".join(talk.rows())


def test_what_is_typed_after_a_stop_and_fg_is_kept_too(tmp_path: Path) -> None:
    """Ctrl-Z, and the shell gives the terminal back in its own mode, in which nothing arrives before Enter."""
    with opened(tmp_path) as talk:
        talk.line("hang")
        talk.sees("Partial answer")
        talk.process.send_signal(signal.SIGSTOP)
        talk.as_a_shell_would()
        talk.process.send_signal(signal.SIGCONT)
        talk.until(lambda: not talk.echoes(), "terminal of its own")
        talk.send("ahead")
        talk.sees("> ahead")


def test_a_failed_load_leaves_nothing_for_the_shell(tmp_path: Path) -> None:
    """Report 123, where the chat dies before its first prompt."""
    file = tmp_path / "bad.json"
    file.write_text("{}")
    with Talk(tmp_path / "home", "--model", f"script:{file}") as talk:
        talk.send("rm -rf everything\r")
        assert talk.ends() == 3
        assert talk.left_over() == b""
        error = f"error: the script `{file}` is malformed: Object missing required field `replies`"
        assert " ".join(talk.rows()).removeprefix("rm -rf everything ") == error  # echoed before we were there


def test_two_hundred_lines_in_a_window_of_24_are_shown_once_each(tmp_path: Path) -> None:
    """Report 126: repeated lines in the scroll-back."""
    with opened(tmp_path) as talk:
        talk.line("lines")
        talk.sees("200 tokens")
        assert talk.rows()[3:203] == [f"line {i}" for i in range(1, 201)]


def test_a_window_made_narrow_during_an_answer(tmp_path: Path) -> None:
    """Report 127: 80 columns become 40."""
    with opened(tmp_path) as talk:
        talk.line("slow")
        talk.sees("word word word")
        talk.resize(40, 24)
        talk.sees("20 tokens")
        assert [row for row in talk.rows() if row.startswith("word")] == [
            "word word word word word word word word",
            "word word word word word word word word",
            "word word word word",
        ]


def test_reset_forgets_the_conversation_and_keeps_the_system_prompt(tmp_path: Path) -> None:
    """Report 132: the token count before and after."""
    with opened(tmp_path, "--system", "Be brief.") as talk:
        for question in ("Hi", "Hi again", "/reset", "Hi"):
            talk.line(question)
        talk.sees("91 prompt tokens", 2)
        rows = talk.rows()
        assert [row.split(" ")[0] for row in rows if "prompt tokens" in row] == ["91", "176", "91"]
        said = "forgotten: 2 messages and the answers; system prompt, screen, input history and the saved session stay"
        assert said in " ".join(rows)


def test_commands_answer_on_the_screen(tmp_path: Path) -> None:
    with opened(tmp_path) as talk:
        for command in ("/system", "/system Be brief.", "/system", "/halp", "/system -", "/help"):
            talk.line(command)
        talk.at_prompt()
        text = "\n".join(talk.rows())
        assert "> /system\nthere is no system prompt\n" in text
        assert "\nsystem prompt set, from the next message on; /reset starts afresh\n" in text
        assert "> /system\nsystem prompt: Be brief.\n" in text
        assert "error: `/halp` is not a command\n\nhint: did you mean `/help`?" in text
        assert "\nsystem prompt taken away, from the next message on; /reset starts afresh\n" in text
        assert "\n/help, /?               show this\n" in text


SYSTEM_LINES = '/system """\rone\r/exit\rtwo"""'


def test_a_block_and_a_double_slash(tmp_path: Path) -> None:
    """Report 133: inside a block there is no new prompt, and nothing in it is a command."""
    with opened(tmp_path) as talk:
        talk.at_prompt()
        talk.send('"""ECHO\r/exit\rend')
        talk.sees('> """ECHO\n  /exit\n  end')
        talk.send('"""')
        talk.enter()
        talk.sees("seen")
        talk.line("//ECHO")
        talk.sees("seen", 2)
        talk.at_prompt()
        talk.send(SYSTEM_LINES)
        talk.enter()
        talk.sees("system prompt set")
        talk.line("/system")
        talk.sees("system prompt: one\n/exit\ntwo")


@pytest.mark.parametrize("times", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_a_prompt_over_the_window_is_refused_with_both_numbers_and_the_chat_goes_on(tmp_path: Path, times: int) -> None:
    """Report 95: a long session to the limit, again and again, then a normal message."""
    with opened(tmp_path, rows=40) as talk:
        for number in range(times):
            talk.line("long " + "x" * 2000)
            talk.sees("hint: send a shorter message", number + 1)
            talk.until(lambda: talk.rows()[-1].endswith("xxx"), "message that can be made shorter")
            talk.send("\x03")
        talk.line("Hi")
        talk.sees("52 prompt tokens, 3 tokens")
        text = "".join("".join(talk.rows()).split())
        assert "error:theprompthas2055tokensandthecontextwindowis2000tokens," in text


def test_an_answer_that_fills_the_window_says_so(tmp_path: Path) -> None:
    model = script(tmp_path, {"tokens": ["more "], "then": "repeat"}, context_tokens=100)
    with Talk(tmp_path / "home", "--model", model) as talk:
        talk.line("Hi")
        talk.sees("the answer was cut: the context window of 100 tokens is full")
        talk.sees("cut at the limit, 52 prompt tokens, 47 tokens")


def test_a_failure_in_an_answer_is_one_sentence_and_the_chat_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as talk:
        talk.line("fault")
        talk.sees("error: generation failed")
        talk.line("Hi")
        talk.sees("Hello there.")
        assert talk.rows()[3:5] == ["some", "error: generation failed"]
        assert "Traceback" not in "\n".join(talk.rows())


def test_thoughts_are_shown_apart_and_not_remembered(tmp_path: Path) -> None:
    model = script(tmp_path, {"tokens": ["<think>", "Hm.", "</think>", "Yes."]}, think=["<think>", "</think>"])
    with Talk(tmp_path / "home", "--model", model, "--quiet") as talk:
        talk.line("Hi")
        talk.at_prompt()
        assert talk.rows()[1:] == ["> Hi", "thought for 0.0 s", "", "Yes.", "", ">"]


def test_the_history_is_for_its_owner_and_for_the_next_chat(tmp_path: Path) -> None:
    """Prompts are private; a history file others can read is a leak."""
    for _ in range(2):
        with opened(tmp_path) as talk:
            talk.at_prompt()
            talk.send("\x1b[A\x1b[A")
            talk.line("Hi\x1b\rECHO") if _ == 0 else talk.sees("> Hi\n  ECHO")
            if _ == 0:
                talk.sees("seen")
    history = tmp_path / "home" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert stat.S_IMODE(history.parent.stat().st_mode) == 0o700


COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


def test_a_dumb_terminal_gets_no_sequences(tmp_path: Path) -> None:
    """Report 128."""
    with opened(tmp_path, TERM="dumb") as talk:
        talk.line("Hi")
        talk.sees("3 tokens")
        talk.at_prompt()
        talk.send("\x04")
        assert talk.ends() == 0
        assert b"\x1b" not in talk.raw
        assert "Hello **there**." in talk.rows()


@pytest.mark.parametrize(
    ("arguments", "env", "coloured"), [((), {"NO_COLOR": "1"}, False), (("--no-color",), {}, False), ((), {}, True)]
)
def test_colours_can_be_left_out(
    tmp_path: Path, arguments: tuple[str, ...], env: dict[str, str], coloured: bool
) -> None:
    """Report 128. Of the answer's code, the menu, an error."""
    model = script(tmp_path, {"tokens": ["```python\nimport `x`\n```\n", "`code`"]})
    with Talk(tmp_path / "home", "--model", model, *arguments, **env) as talk:
        talk.line("Hi")
        talk.sees("2 tokens")
        talk.line("/halp")
        talk.sees("did you mean")
        talk.at_prompt()
        talk.send("/s\t")
        talk.sees("/sessions")
        assert (COLOUR.search(talk.raw) is not None) == coloured


def test_ctrl_c_at_a_dumb_prompt_keeps_the_chat(tmp_path: Path) -> None:
    with opened(tmp_path, TERM="dumb") as talk:
        talk.at_prompt()
        talk.send("half")
        talk.sees("> half")
        talk.send("\x03")
        talk.sees("Ctrl-C again, Ctrl-D or /exit leaves")
        talk.line("two\nrows ECHO")
        talk.sees("seen")


def test_a_terminal_without_unicode_gets_replacements(tmp_path: Path) -> None:
    """Report 130."""
    model = script(tmp_path, {"tokens": ["- café 😀\n"]})
    with Talk(tmp_path / "home", "--model", model, PYTHONIOENCODING="ascii") as talk:
        talk.line("Hi")
        talk.at_prompt()
        assert talk.rows()[3] == "- caf? ?"
        talk.send("\x04")
        assert talk.ends() == 0


def test_answers_may_go_to_a_file_while_the_talk_stays_in_the_terminal(tmp_path: Path) -> None:
    """Report 128: `lattice chat > out.txt` hung, or wrote prompts and cursor codes."""
    out = tmp_path / "out.txt"
    with opened(tmp_path, stdout=out) as talk:
        talk.line("Hi")
        talk.sees("3 tokens")
        talk.line("ECHO")
        talk.at_prompt()
        talk.send("\x04")
        assert talk.ends() == 0
    assert out.read_bytes() == b"Hello **there**.\nseen\n"


@pytest.mark.parametrize(
    "arrange", [lambda talk: talk.at_prompt(), lambda talk: (talk.line("hang"), talk.sees("answer"))]
)
def test_a_terminate_signal_leaves_the_terminal_as_it_was(tmp_path: Path, arrange: Callable[[Talk], object]) -> None:
    with opened(tmp_path) as talk:
        arrange(talk)
        talk.process.terminate()
        assert talk.ends() == 143
        assert talk.echoes()
        assert talk.terminal.cursor_shown


def test_ctrl_z_gives_the_shell_its_terminal_and_fg_goes_on(tmp_path: Path) -> None:
    """The cursor stayed hidden in the shell when an answer, or a load, was stopped."""
    chat = shlex.join([*LATTICE, "chat", "--model", script(tmp_path, HANG, HELLO)])
    bash = ("bash", "--norc", "--noprofile", "-i")
    with Talk(tmp_path / "home", command=bash, PS1="shell ", HISTFILE="/dev/null") as talk:
        talk.send(f"{chat}\r")
        talk.line("hang")
        talk.sees("Partial answer")
        talk.until(lambda: not talk.terminal.cursor_shown, "hidden cursor")
        talk.send("\x1a")
        talk.until(lambda: "Stopped" in "".join(talk.rows()) and talk.terminal.cursor_shown, "shell with a cursor")
        talk.send("stty -a | grep -cw echo\r")
        talk.until(lambda: "1" in talk.rows(), "terminal that echoes")
        talk.send("fg\r")
        talk.until(lambda: talk.rows().count("Partial answer") == 1, "answer again")
        talk.send("\x03")
        talk.sees("stopped, ")
        talk.at_prompt()
        talk.send("\x04")
        talk.until(lambda: talk.rows()[-1] == "shell", "shell")
        talk.send("exit\r")
        assert talk.ends() == 0


def test_columns_stand_below_each_other_where_letters_are_replaced(tmp_path: Path) -> None:
    """Report 130: `LC_ALL=C`. A letter of two cells became one question mark, and its row was two cells short."""
    table = {"tokens": ["| a | b |\n|---|---|\n| \u65e5\u672c | 1 |\n| long | 2 |\n"]}
    with Talk(tmp_path / "home", "--model", script(tmp_path, table), PYTHONIOENCODING="ascii") as talk:
        talk.line("Hi")
        talk.sees("prompt tokens")
        rows = [row for row in talk.rows() if " | " in row]
        assert [row.index("|") for row in rows] == [5] * 3
        assert rows[1].split() == ["??", "|", "1"]
