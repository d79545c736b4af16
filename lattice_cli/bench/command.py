"""`lattice bench`: its commands, and `parity` with its options.

Thread: any
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from lattice_cli.bench.choices import SaveOption
from lattice_cli.bench.compare_command import compare_command
from lattice_cli.bench.load_command import load_command
from lattice_cli.bench.report_command import report_command
from lattice_cli.bench.speed_command import speed_command
from lattice_cli.command_group import Group

bench_app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure the engine in this process (speed) or any OpenAI-compatible server (load); hold servers beside each "
    "other (compare), replies beside recorded ones (parity); make pages of what was saved (report).",
)

bench_app.command("speed")(speed_command)
bench_app.command("load")(load_command)
bench_app.command("compare")(compare_command)
bench_app.command("report")(report_command)


@bench_app.command()
def parity(
    suite: Annotated[str | None, typer.Option(help="One suite [default: all]")] = None,
    case: Annotated[str | None, typer.Option(help="The cases of that name")] = None,
    url: Annotated[str | None, typer.Option(help="Ask this server [default: servers it starts itself]")] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="URL", help="No fixtures: ask our engine and this server the same, greedily, and compare"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="With --against: our model")] = None,
    served: Annotated[
        str | None, typer.Option(help="With --against: what the server calls its [default: first]")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --against: JSON lines with `prompt` or `messages`")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="With --against: length of the replies")] = 64,
    margin: Annotated[
        float, typer.Option(min=0, help="With --against: logits within which another token is a near tie")
    ] = 0.5,
    save: SaveOption = None,
    json: Annotated[bool, typer.Option("--json", help="Tables to stderr, one JSON document to stdout")] = False,
    every_case: Annotated[bool, typer.Option("--verbose", help="List the cases that agree too")] = False,
    fixtures: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="The fixtures [default: those of lattice]"),
    ] = None,
) -> None:
    """Replay the recorded contracts of both seeds and our own over real sockets, and tiny models with golden numbers.

    Suites: lattice-0.5.0, lattice-0.6.1, openai, models, greedy. The exit status is 4 when a case differs. With
    --url the cases that need a script, a policy or flags are skipped and counted. With --against the first token that
    differs is told, and by how many logits it was the likelier one here.
    """
    if against is not None:
        from lattice_cli.bench.parity_beside import BesidePlan, run_beside
        from lattice_cli.bench.record import Outlet

        run_beside(BesidePlan(against, model, served, prompts, tokens, margin), Outlet(json, save))
        return
    from lattice_cli.bench import machine, parity_report, record
    from lattice_cli.bench.parity_suites import ParityPlan, run_parity
    from lattice_cli.errors import BenchError

    began_s = time.monotonic()
    verdicts = run_parity(ParityPlan(suite, case, url, fixtures))
    parity_report.show(verdicts, to_stderr=json, every_case=every_case)
    parity_report.footnotes(verdicts)
    if json:
        seconds = time.monotonic() - began_s
        parity_report.write(parity_report.record(verdicts, record.command_line(), machine.versions(), seconds))
    if differ := sum(verdict.word == "differs" for verdict in verdicts):
        raise BenchError(f"{differ} of {len(verdicts)} cases differ")
