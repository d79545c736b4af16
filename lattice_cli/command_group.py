"""The command tree's manners, beyond typer's: what other tools call a command is answered with what it is called
here, and no line of help is cut.

Thread: any
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from lattice_cli.harmless import harmless

LIST, TALK = "`lattice models` lists the models", "`lattice chat --model NAME` talks to a model"
REMOVE, PULL = "`lattice models rm NAME` removes a model", "`lattice pull NAME` brings a model"
# By the path of the group: a command that it does not have, and what there is in its place.
ELSEWHERE = {
    "lattice": {
        **dict.fromkeys(("list", "ls", "ps", "show", "info", "model"), LIST),
        **dict.fromkeys(("run", "ask", "repl", "prompt", "generate", "talk"), TALK),
        **dict.fromkeys(("rm", "remove", "delete", "uninstall"), REMOVE),
        **dict.fromkeys(("download", "get", "install", "fetch"), PULL),
        **dict.fromkeys(("server", "start", "api"), "`lattice serve` answers over HTTP"),
        **dict.fromkeys(("convert", "create"), "`lattice quantize MODEL FOLDER` writes a model anew"),
        **dict.fromkeys(("benchmark", "perf"), "`lattice bench` measures"),
        "help": "`lattice --help` shows what there is",
        "version": "`lattice --version` shows it",
        "completion": "`lattice --install-completion` installs it",
    },
    "lattice models": {
        **dict.fromkeys(("list", "ls", "show", "info"), "`lattice models` alone lists the models"),
        **dict.fromkeys(("pull", "download", "get", "add", "install"), PULL),
        **dict.fromkeys(("remove", "delete"), REMOVE),
    },
}
# By the path of a command that takes options only.
BESIDE = {
    "lattice chat": "a model stands behind `--model`, a message behind `--prompt`",
    "lattice serve": "a model stands behind `--model`",
}


class Group(TyperGroup):
    """A group of commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, known = args[0], ELSEWHERE.get(ctx.command_path, {})
        if name not in self.commands and name in known and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{name}': {known[name]}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, _first_sentence(command.help or "")) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class OptionsOnly(TyperCommand):
    """A command that takes no argument, and says where one belongs."""

    allow_extra_args = True  # which are refused below

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if (rest := super().parse_args(ctx, args)) and not ctx.resilient_parsing:
            ctx.fail(f"Got unexpected extra argument(s) ({harmless(' '.join(rest))}): {BESIDE[ctx.command_path]}.")
        return rest


def _first_sentence(text: str) -> str:
    """The first sentence of a help text, on one line, as a list of commands shows it."""
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".") + "."
