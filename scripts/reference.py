"""Writes docs/reference from the commands' own --help: `python scripts/reference.py docs/reference`.

Thread: any
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from lattice_cli.cli import app

HEAD = """# Commands

Generated from `--help` by `make docs`; do not edit.
"""


def command_paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command, parents first."""
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from command_paths(child, (*path, name))


def reference() -> str:
    """The whole page, 100 columns wide whatever the terminal is."""
    runner = CliRunner(env={"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"})
    sections = [HEAD]
    for path in command_paths(typer.main.get_command(app)):
        shown = runner.invoke(app, [*path, "--help"], prog_name="lattice", terminal_width=100, max_content_width=100)
        sections.append(f"## {' '.join(('lattice', *path))}\n\n```text\n{shown.stdout.strip()}\n```\n")
    return "\n".join(sections)


def main() -> None:
    """Write commands.md into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "commands.md").write_text(reference())


if __name__ == "__main__":
    main()
