"""What Tab and the menu offer: commands with their help, what may stand behind them, and paths behind `@`.

Thread: any
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.styles import Style

from lattice_cli.chat.repl import BY_NAME, COMMANDS
from lattice_cli.errors import LatticeError
from lattice_cli.harmless import harmless

COMMAND = re.compile(r"/[A-Za-z]*")
ARGUMENT = re.compile(r"(/[A-Za-z]+) +(\S*)")
QUOTED = re.compile(r'(?:.*\s|)@"([^"\n]*)', re.DOTALL)
MOST_PATHS = 200
# The terminal's own colours, light or dark.
MENU_STYLE = Style.from_dict(
    {
        "completion-menu": "bg:default fg:default",
        "completion-menu.completion": "bg:default fg:default",
        "completion-menu.completion.current": "bg:default fg:default reverse",
        "completion-menu.meta.completion": "bg:default fg:ansibrightblack",
        "completion-menu.meta.completion.current": "bg:default fg:default reverse",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "bg:ansibrightblack",
    }
)

Words = Callable[[str], Iterable[tuple[str, str]]]
"""A command's first name -> what may stand behind it, each with a word of help."""


class Offers(Completer):
    """`words` may be set when they are known: the line is there before the model is."""

    def __init__(self) -> None:
        self.words: Words = lambda name: ()

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        if COMMAND.fullmatch(text):
            yield from _commands(text)
        elif match := ARGUMENT.fullmatch(text):
            yield from self._arguments(match[1].lower(), match[2])
        elif (name := file_word(text)) is not None:
            yield from _paths(name)

    def _arguments(self, name: str, begun: str) -> Iterator[Completion]:
        command = BY_NAME.get(name)
        if command is None or command.takes == "nothing":
            return
        if command.names[0] == "/export":
            yield from _paths(begun)
            return
        try:
            words = self.words(command.names[0][1:])
        except LatticeError:  # the sessions cannot be read: the command itself says so
            return
        for word, help_ in words:
            if word.startswith(begun):
                yield Completion(word, -len(begun), display=harmless(word), display_meta=harmless(help_))


def wanted(document: Document) -> bool:
    """Whether the menu comes by itself while this is typed."""
    text = document.text_before_cursor
    return bool(COMMAND.fullmatch(text) or ARGUMENT.fullmatch(text)) or file_word(text) is not None


def file_word(text: str) -> str | None:
    """The path that is being typed behind an `@`, as far as it has come."""
    if match := QUOTED.fullmatch(text):
        return f'"{match[1]}'
    last = re.split(r"(?<!\\)\s", text)[-1]
    return last[1:] if last.startswith("@") and '"' not in last else None


def _commands(begun: str) -> Iterator[Completion]:
    for command in COMMANDS:
        for name in command.names:
            if name.startswith(begun.lower()):
                shown = f"{name} {command.argument}".rstrip()
                yield Completion(name, -len(begun), display=shown, display_meta=command.help)
                break


def _paths(begun: str) -> Iterator[Completion]:
    """What a folder holds, folders with a slash; hidden ones where a dot is typed."""
    quote = '"' if begun.startswith('"') else ""
    typed = begun[1:] if quote else re.sub(r"\\(.)", r"\1", begun)
    folder, slash, start = typed.rpartition("/")
    try:
        entries = sorted(Path(folder + slash or ".").expanduser().iterdir(), key=lambda entry: entry.name)
    except (OSError, RuntimeError):
        return
    found = [entry for entry in entries if entry.name.startswith(start) and (start or not entry.name.startswith("."))]
    for entry in found[:MOST_PATHS]:
        name = entry.name + ("/" if entry.is_dir() else "")
        spelled = name if quote else re.sub(r"([\s\\\"])", r"\\\1", name)
        if harmless(name) == name and "\n" not in name:
            yield Completion(spelled, -len(start if quote else re.sub(r"([\s\\\"])", r"\\\1", start)), display=name)
