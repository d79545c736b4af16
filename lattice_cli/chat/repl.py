"""A line in, an Action out: the slash commands as one table.

Knows texts; prints nothing and runs nothing. What a command does is a method of Talk (actions.py).

Thread: any
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from lattice_cli.chat.typed import QUOTES, Typed, unquoted


@dataclass(frozen=True, slots=True)
class Ask:
    """A message for the model. `plain` are `@words` in it that name no file, because they were pasted."""

    text: str
    plain: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Nothing:
    """An empty line."""


@dataclass(frozen=True, slots=True)
class Do:
    """A command: its first name without the slash, and what stands behind it."""

    name: str
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Leave:
    """End the chat."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A command that is not one of ours, or is used wrongly; `hint` says what to do."""

    message: str
    hint: str


Action = Ask | Nothing | Do | Leave | Unknown


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table. `takes`: whether text may or must stand behind it; `lines`: that text may have several."""

    names: tuple[str, ...]
    argument: str
    help: str
    takes: Literal["nothing", "maybe", "text"] = "nothing"
    lines: bool = False


COMMANDS = (
    Command(("/help", "/?"), "", "show this"),
    Command(("/exit", "/quit", "/bye"), "", "leave"),
    Command(("/reset", "/clear"), "", "forget the conversation; the system prompt stays"),
    Command(("/undo",), "", "take back the last message and its answer"),
    Command(("/redo",), "", "bring back what /undo took"),
    Command(("/retry",), "[TEMPERATURE]", "the last message again", "maybe"),
    Command(("/edit",), "", "change the last message in $EDITOR and ask it anew"),
    Command(("/continue",), "", "go on with an answer that was cut or stopped"),
    Command(("/system",), "[TEXT]", "set the system prompt; alone: show it; -: none", "maybe", lines=True),
    Command(("/set",), "[NAME VALUE]", "how answers are made; alone: show it; -: as it was", "maybe"),
    Command(("/think",), "[show|hide|off]", "how thoughts are shown; alone: the last one whole", "maybe"),
    Command(("/model",), "[NAME]", "talk to another model; alone: which there are", "maybe"),
    Command(("/save",), "[NAME]", "save the conversation under a name", "maybe"),
    Command(("/load",), "NAME", "go on with a saved conversation", "text"),
    Command(("/sessions",), "", "what is saved"),
    Command(("/export",), "FILE", "write the conversation to a .md or .json file", "text"),
    Command(("/copy",), "", "copy the last answer to the clipboard"),
    Command(("/stats",), "", "what this conversation has cost so far"),
    Command(("/tokens",), "", "how full the context window is"),
)
BY_NAME = {name: command for command in COMMANDS for name in command.names}
KEYS = (
    ("Alt-Enter", "a new line (or Esc, Enter); a pasted text is one message"),
    (QUOTES, "begins a message of several lines, and ends it"),
    ("@FILE", "puts a text file into the message"),
    ("//TEXT", "sends /TEXT"),
    ("Ctrl-C", "stop the answer, or clear the line; twice: leave"),
    ("Ctrl-D", "leave"),
    ("Up, Ctrl-R", "earlier messages, search in them"),
)
BARE_WORDS = ("exit", "quit")  # how Lattice's own prompt is left
COMMAND_LINE = re.compile(r"(/[A-Za-z?]+)(?:\s+(.*))?", re.DOTALL)


def read(typed: Typed) -> Action:
    """What a typed or pasted text asks for.

    A pasted text is a message, whatever stands in it. So is a path or a comment that begins with a slash: only a slash,
    letters and nothing else in the first word make a command, and one of several lines only where it takes such a text.
    """
    text = typed.text.replace("\r\n", "\n").replace("\r", "\n").rstrip()
    if not text.strip():
        return Nothing()
    if typed.pasted:
        return Ask(text, typed.plain)
    if (inner := unquoted(text)) is not None:
        return Ask(inner, typed.plain) if inner.strip() else Nothing()
    if text in BARE_WORDS:
        return Leave()
    if text.startswith("//"):
        return Ask(text[1:], typed.plain)
    match = COMMAND_LINE.fullmatch(text)
    return Ask(text, typed.plain) if match is None else _command(text, match[1].lower(), match[2] or "", typed.plain)


def _command(text: str, name: str, rest: str, plain: frozenset[str]) -> Action:
    command = BY_NAME.get(name)
    quoted = unquoted(rest)
    if "\n" in text and not (command and command.lines):
        return Ask(text, plain)
    if command is None:
        return Unknown(f"`{name}` is not a command", _meant(name))
    rest = (rest if quoted is None else quoted).strip()
    if rest and command.takes == "nothing":
        return Unknown(f"`{name}` takes no text", f"type `{name}` alone")
    if not rest and command.takes == "text":
        return Unknown(f"`{name}` needs {command.argument}", f"`{name} {command.argument}`: {command.help}")
    if command.names[0] == "/exit":
        return Leave()
    return Do(command.names[0][1:], rest)


def _meant(name: str) -> str:
    close = get_close_matches(name, BY_NAME, n=1)
    guess = f"did you mean `{close[0]}`? " if close else ""
    return f"{guess}`/help` lists the commands; `/{name}` sends it as a message"
