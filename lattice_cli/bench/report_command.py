"""`lattice bench report`: saved records in, Markdown or a page out, and a judgement for CI.

Thread: any
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def report_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Records of --save, or the stdout of a run")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write report.md and report.html there [default: Markdown to stdout]"),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help='Exit 4 where it holds: "decode_tok_s < 0.9 * old.json"; a name after the file is that metric in it',
        ),
    ] = None,
) -> None:
    """Saved records as Markdown, and as one HTML page with plots (the extra `plots`).

    Several records of `bench load` are drawn side by side, a line for each file.
    A condition is looked at for every point of every file; points are compared with those of the same name.
    """
    from lattice_cli.bench import plots
    from lattice_cli.bench.conditions import read_condition
    from lattice_cli.bench.page import markdown, page
    from lattice_cli.bench.saved import read_saved
    from lattice_cli.console import say
    from lattice_cli.errors import BenchError, UsageError

    records = [read_saved(path) for path in files]
    conditions = [read_condition(text) for text in fail_if or ()]
    text = markdown(records)
    if out is None:
        sys.stdout.write(text)
    else:
        able = plots.can_draw()
        drawn = [plots.draw(saved) if able else [] for saved in records]
        together = plots.draw_together(records) if able else {}
        try:
            out.mkdir(parents=True, exist_ok=True)
            for name, element in together.items():
                (out / f"{name}.svg").write_text(plots.as_file(element), encoding="utf-8")
            pictures = "".join(f"![{name} by clients]({name}.svg)\n\n" for name in together)
            (out / "report.md").write_text(pictures + text, encoding="utf-8")
            (out / "report.html").write_text(page(records, drawn, list(together.values())), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"`{out}` cannot be written: {error.strerror}", param="--out") from error
        say(f"wrote `{out / 'report.md'}` and `{out / 'report.html'}`")
        if not able:
            say("without figures: matplotlib is not here; pip install 'lattice-cli[plots]' brings it")
    if broken := [line for condition in conditions for line in condition.breaks(records)]:
        for line in broken[1:]:
            say(line)
        raise BenchError(broken[0])
