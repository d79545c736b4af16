"""A line in, an Action out.

Thread: any
"""

from __future__ import annotations

import pytest

from lattice_cli.chat.repl import (
    BY_NAME,
    COMMANDS,
    Action,
    Ask,
    Help,
    Leave,
    Nothing,
    Reset,
    SetSystem,
    ShowSystem,
    Unknown,
    help_lines,
    read,
)

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("hello", Ask("hello")),
        ("  indented stays", Ask("  indented stays")),
        ("", Nothing()),
        (" \n\t ", Nothing()),
        ("/help", Help()),
        ("/?", Help()),
        ("/HELP ", Help()),
        ("/reset", Reset()),
        ("/clear", Reset()),
        ("/system", ShowSystem()),
        ("/system Be brief.", SetSystem("Be brief.")),
        ("/system one\ntwo", SetSystem("one\ntwo")),
        ("/system -", SetSystem(None)),
        ("/exit", Leave()),
        ("/quit", Leave()),
        ("/bye", Leave()),
        ("exit", Leave()),
        ("quit", Leave()),
        ("quit smoking, how?", Ask("quit smoking, how?")),
    ],
)
def test_a_line_becomes_an_action(line: str, action: Action) -> None:
    assert read(line) == action


def test_a_pasted_program_is_one_message_with_its_breaks_tabs_and_blank_lines() -> None:
    """Report 122: sent line by line, breaks lost, or only the first line counted."""
    assert read("def f():\r\n\treturn 1\r\n\r\n\r\nf()\r\n") == Ask("def f():\n\treturn 1\n\n\nf()")


@pytest.mark.parametrize(
    "line",
    ["/usr/bin/env: no such file", "// a comment", "/* C */", "/etc/hosts", " /help", "/2 of it", "/start\nof a paste"],
)
def test_a_slash_alone_makes_no_command(line: str) -> None:
    """A pasted path or comment is a message."""
    assert read(line) == Ask(line)


@pytest.mark.parametrize(
    ("line", "message", "guess"),
    [
        ("/halp", "`/halp` is not a command", "did you mean `/help`? "),
        ("/rest", "`/rest` is not a command", "did you mean `/reset`? "),
        ("/zzz", "`/zzz` is not a command", ""),
    ],
)
def test_an_unknown_command_is_answered_with_a_hint(line: str, message: str, guess: str) -> None:
    hint = "`/help` lists the commands; a message may begin with a slash after a space"
    assert read(line) == Unknown(message, guess + hint)


def test_a_command_that_takes_no_text_says_so() -> None:
    """`/reset everything` must not forget a conversation on a guess."""
    assert read("/reset everything") == Unknown("`/reset` takes no text", "type `/reset` alone")


def test_help_shows_every_command_and_fits_eighty_columns() -> None:
    lines = help_lines()
    assert [line.split("  ")[0].split(",")[0].split()[0] for line in lines[: len(COMMANDS)]] == [
        command.names[0] for command in COMMANDS
    ]
    assert max(map(len, lines)) < 80
    assert len(BY_NAME) == sum(len(command.names) for command in COMMANDS)
