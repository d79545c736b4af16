"""A line in, an Action out: the slash commands as one table.

Knows texts; prints nothing and runs nothing.

Thread: any
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Ask:
    """A message for the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """An empty line."""


@dataclass(frozen=True, slots=True)
class Help:
    """Show the commands and keys."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget the conversation."""


@dataclass(frozen=True, slots=True)
class ShowSystem:
    """Show the system prompt."""


@dataclass(frozen=True, slots=True)
class SetSystem:
    """Replace the system prompt; None takes it away."""

    text: str | None


@dataclass(frozen=True, slots=True)
class Leave:
    """End the chat."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A command that is not one of ours, or is used wrongly; `hint` says what to do."""

    message: str
    hint: str


Action = Ask | Nothing | Help | Reset | ShowSystem | SetSystem | Leave | Unknown


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table. `make` turns what stands behind the name into an Action; None: takes nothing."""

    names: tuple[str, ...]
    argument: str
    help: str
    make: Callable[[str], Action] | Action


def _system(text: str) -> Action:
    if not text:
        return ShowSystem()
    return SetSystem(None if text == "-" else text)


COMMANDS = (
    Command(("/help", "/?"), "", "show this", Help()),
    Command(("/reset", "/clear"), "", "forget the conversation; the system prompt stays", Reset()),
    Command(("/system",), "[TEXT]", "set the system prompt; alone: show it; with -: take it away", _system),
    Command(("/exit", "/quit", "/bye"), "", "leave", Leave()),
)
BY_NAME = {name: command for command in COMMANDS for name in command.names}
KEYS = (
    ("Alt-Enter", "a new line (or Esc, Enter); a pasted text is one message"),
    ("Ctrl-C", "stop the answer; at the prompt: clear the line"),
    ("Ctrl-D", "leave"),
    ("Up, Ctrl-R", "earlier messages, search in them"),
)
BARE_WORDS = ("exit", "quit")  # how Lattice's own prompt is left
COMMAND_LINE = re.compile(r"(/[A-Za-z?]+)(?:\s+(.*))?", re.DOTALL)


def read(line: str) -> Action:
    """What a typed or pasted text asks for.

    A path, a comment or a pasted program that begins with a slash is a message: only a slash, letters
    and nothing else in the first word make a command, and an unknown one only on a line of its own.
    """
    text = line.replace("\r\n", "\n").replace("\r", "\n").rstrip()
    if not text.strip():
        return Nothing()
    if text in BARE_WORDS:
        return Leave()
    match = COMMAND_LINE.fullmatch(text)
    if match is None:
        return Ask(text)
    name, rest = match[1].lower(), (match[2] or "").strip()
    command = BY_NAME.get(name)
    if command is None:
        return Ask(text) if "\n" in text else Unknown(f"`{name}` is not a command", _meant(name))
    if not callable(command.make):
        return command.make if not rest else Unknown(f"`{name}` takes no text", f"type `{name}` alone")
    return command.make(rest)


def _meant(name: str) -> str:
    close = get_close_matches(name, BY_NAME, n=1)
    guess = f"did you mean `{close[0]}`? " if close else ""
    return f"{guess}`/help` lists the commands; a message may begin with a slash after a space"


def help_lines() -> list[str]:
    """The commands and keys, one a line, aligned."""
    rows = [(" ".join(filter(None, (", ".join(c.names), c.argument))), c.help) for c in COMMANDS]
    rows += KEYS
    width = max(len(left) for left, _ in rows)
    return [f"{left:<{width}}  {right}" for left, right in rows]
