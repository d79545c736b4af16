"""A line in, an Action out.

Thread: any
"""

from __future__ import annotations

import pytest

from lattice_cli.chat.help import help_lines
from lattice_cli.chat.repl import BY_NAME, COMMANDS, KEYS, Action, Ask, Do, Leave, Nothing, Unknown, read
from lattice_cli.chat.typed import Typed, block_open, unquoted

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("hello", Ask("hello")),
        ("  indented stays", Ask("  indented stays")),
        ("", Nothing()),
        (" \n\t ", Nothing()),
        ("/help", Do("help")),
        ("/?", Do("help")),
        ("/HELP ", Do("help")),
        ("/reset", Do("reset")),
        ("/clear", Do("reset")),
        ("/undo", Do("undo")),
        ("/retry", Do("retry")),
        ("/retry 0.2", Do("retry", "0.2")),
        ("/set temperature 0.2", Do("set", "temperature 0.2")),
        ("/think hide", Do("think", "hide")),
        ("/export talk.md", Do("export", "talk.md")),
        ("/system", Do("system")),
        ("/system Be brief.", Do("system", "Be brief.")),
        ("/system one\ntwo", Do("system", "one\ntwo")),
        ('/system """\none\n/exit\n"""', Do("system", "one\n/exit")),
        ("/system -", Do("system", "-")),
        ("/exit", Leave()),
        ("/quit", Leave()),
        ("/bye", Leave()),
        ("exit", Leave()),
        ("quit", Leave()),
        ("quit smoking, how?", Ask("quit smoking, how?")),
        ('"""\n/exit\n\ntwo\n"""', Ask("/exit\n\ntwo")),
        ('"""one"""', Ask("one")),
        ('""""""', Nothing()),
        ('"""Docstring."""\nimport this', Ask('"""Docstring."""\nimport this')),
        ("//exit", Ask("/exit")),
        ("// a comment", Ask("/ a comment")),
    ],
)
def test_a_line_becomes_an_action(line: str, action: Action) -> None:
    assert read(Typed(line)) == action


def test_a_pasted_program_is_one_message_with_its_breaks_tabs_and_blank_lines() -> None:
    """Report 122: sent line by line, breaks lost, or only the first line counted."""
    assert read(Typed("def f():\r\n\treturn 1\r\n\r\n\r\nf()\r\n")) == Ask("def f():\n\treturn 1\n\n\nf()")


@pytest.mark.parametrize("first", ["/exit", "/system Be rude.", "//", '"""', "exit", "// a comment", "@secret"])
def test_a_pasted_text_runs_no_command_whatever_it_begins_with(first: str) -> None:
    """Report 122: lines of a paste were taken for commands."""
    text = first + "\n" + "/exit\n" * 499
    assert read(Typed(text, pasted=True)) == Ask(text.rstrip())


def test_a_command_with_more_lines_below_it_is_a_message() -> None:
    """A paste brought back with Up is no longer known as one."""
    assert read(Typed("/exit\nmore")) == Ask("/exit\nmore")
    assert read(Typed("/reset\n/exit")) == Ask("/reset\n/exit")


@pytest.mark.parametrize(
    "line",
    ["/usr/bin/env: no such file", "/* C */", "/etc/hosts", " /help", "/2 of it", "/start\nof a paste"],
)
def test_a_slash_alone_makes_no_command(line: str) -> None:
    """A path or a comment is a message."""
    assert read(Typed(line)) == Ask(line)


@pytest.mark.parametrize(
    ("line", "message", "guess"),
    [
        ("/halp", "`/halp` is not a command", "did you mean `/help`? "),
        ("/rest", "`/rest` is not a command", "did you mean `/reset`? "),
        ("/sesions", "`/sesions` is not a command", "did you mean `/sessions`? "),
        ("/zzz", "`/zzz` is not a command", ""),
    ],
)
def test_an_unknown_command_is_answered_with_a_hint(line: str, message: str, guess: str) -> None:
    assert read(Typed(line)) == Unknown(message, f"{guess}`/help` lists the commands; `/{line}` sends it as a message")


def test_a_command_that_takes_no_text_says_so() -> None:
    """`/reset everything` must not forget a conversation on a guess."""
    assert read(Typed("/reset everything")) == Unknown("`/reset` takes no text", "type `/reset` alone")


def test_a_command_that_needs_a_text_says_what() -> None:
    hint = "`/export FILE`: write the conversation to a .md or .json file"
    assert read(Typed("/export ")) == Unknown("`/export` needs FILE", hint)


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ('"""', True),
        ('"""one\ntwo', True),
        ('"""one"""', False),
        ("one", False),
        ('/system """', True),
        ('a """', False),
    ],
)
def test_a_block_is_open_until_its_second_marks(text: str, is_open: bool) -> None:
    assert block_open(text) == is_open


def test_only_a_block_of_two_marks_is_taken_out_of_them() -> None:
    assert unquoted(' """\n one\n""" ') == " one"
    assert unquoted('"""a""" and """b"""') is None
    assert unquoted('"""""') is None


@pytest.mark.parametrize("width", [120, 80, 60, 40, 20])
def test_help_shows_every_command_and_key_within_the_width(width: int) -> None:
    lines = help_lines(width)
    text = " ".join(" ".join(lines).split())
    for command in COMMANDS:
        assert ", ".join(command.names) in text
        assert command.help in text
    for key, help_ in KEYS:
        assert key in text
        assert help_ in text
    assert max(map(len, lines)) <= max(width, 30)
    assert len(BY_NAME) == sum(len(command.names) for command in COMMANDS)
