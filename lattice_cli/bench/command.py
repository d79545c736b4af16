"""`lattice bench speed`, `load` and `parity`: options in, a measurement or a comparison, a report out.

Thread: any
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lattice_cli.options import KernelsOption, ThreadsOption

if TYPE_CHECKING:
    from lattice_cli.bench.speed import SpeedPlan, Trial
    from lattice_cli.model.card import ModelCard, ModelSource
    from lattice_cli.settings import EngineSettings, Home

bench_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure the engine in this process (speed) or any OpenAI-compatible server (load); compare (parity).",
)

PromptTokens = Annotated[int, typer.Option(min=1, help="Length of the prompt, in tokens")]
MaxTokens = Annotated[int, typer.Option(min=2, help="Length of the reply, in tokens")]
Warmups = Annotated[int, typer.Option(min=0, help="Trials that run first and are left out")]


@bench_app.command()
def speed(
    model: Annotated[str | None, typer.Option(help="Name, folder, .gguf file, org/repo or script:FILE")] = None,
    prompt_tokens: PromptTokens = 512,
    max_tokens: MaxTokens = 64,
    trials: Annotated[int, typer.Option(min=1, help="Trials that count")] = 5,
    warmups: Warmups = 1,
    seed: Annotated[int, typer.Option(min=0, help="Changes how the prompts begin")] = 0,
    prefill_chunk: Annotated[
        int | None, typer.Option(min=1, help="Prompt tokens read between two steps [default: 512; 128 on a slow CPU]")
    ] = None,
    kernels: KernelsOption = None,
    threads: ThreadsOption = None,
) -> None:
    """Prefill and decode speed of the engine itself, without HTTP.

    A table goes to stderr; the last line of stdout is JSON with every trial, the machine and the versions.
    """
    from lattice_cli.bench import machine, report
    from lattice_cli.bench.speed import SpeedPlan
    from lattice_cli.model.locate import find_model
    from lattice_cli.settings import EngineSettings, read_home

    home = read_home(kernels=kernels, threads=threads)
    plan = SpeedPlan(prompt_tokens, max_tokens, trials, warmups, seed)
    before = machine.describe()
    source = find_model(model, home)
    card, results = _measure(source, home, EngineSettings(prefill_chunk=prefill_chunk), plan)
    about = {
        "format": card.format.kind,
        "quantization": card.format.quantization,
        "notes": list(card.notes),
        **({} if source.kind == "script" else machine.computing(home)),
    }
    setting = report.Setting(_command(), before, machine.versions(), card.served_id, about)
    report.show(report.speed_record(setting, plan, results, machine.peak_memory_bytes()))


def _measure(
    source: ModelSource, home: Home, settings: EngineSettings, plan: SpeedPlan
) -> tuple[ModelCard, list[Trial]]:
    """Load, run the plan with a line on stderr for every trial, unload."""
    from lattice_cli.bench.report import figure
    from lattice_cli.bench.speed import run_speed
    from lattice_cli.console import say
    from lattice_cli.engine.open import open_engine
    from lattice_cli.engine.worker import EngineWorker

    worker = EngineWorker(lambda: open_engine(source, home, settings), settings)
    worker.start()
    try:
        card, results = worker.wait_ready(), []
        for note in card.notes:
            say(note)
        for trial in run_speed(worker, plan):
            results.append(trial)
            prefill, decode = figure(trial.prefill_rate or 0), figure(trial.decode_rate or 0)
            say(f"trial {len(results)} of {plan.trials}: prefill {prefill} tok/s, decode {decode} tok/s")
        return card, results
    finally:
        worker.stop()


@bench_app.command()
def load(
    url: Annotated[str, typer.Option(help="The server, with or without /v1")] = "http://127.0.0.1:11435",
    model: Annotated[str | None, typer.Option(help="As the server calls it [default: the first it lists]")] = None,
    clients: Annotated[int, typer.Option(min=1, help="Requests at once")] = 1,
    prompt_tokens: PromptTokens = 512,
    max_tokens: MaxTokens = 64,
    trials: Annotated[int, typer.Option(min=1, help="Requests of each client")] = 5,
    warmups: Warmups = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Makes prompts of runs differ [default: the time]")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Longest silence of the server, in seconds")] = 600,
    api_key: Annotated[str | None, typer.Option(help="Sent as a bearer token")] = None,
) -> None:
    """What clients of an OpenAI-compatible server see: time to first token, tokens per second.

    Every prompt begins unlike any other, so no prompt cache helps. Empty, broken and refused replies are
    failures: they are listed, left out of the figures, and make the exit status 4.
    """
    from lattice_cli.bench import machine, report
    from lattice_cli.bench.crowd import LoadPlan, run_load
    from lattice_cli.bench.load import first_model, read_target
    from lattice_cli.console import say
    from lattice_cli.errors import BenchError

    target = read_target(url, timeout, api_key)
    name = model or first_model(target)
    if name is None:
        raise BenchError(f"`{url}` names no model", hint="start the server, or name one with --model")
    seed = int(time.time()) if seed is None else seed
    plan = LoadPlan(name, prompt_tokens, max_tokens, clients, trials, warmups, seed)
    before = machine.describe()
    result = run_load(target, plan, say)
    setting = report.Setting(_command(api_key), before, machine.versions(), name, {"url": url})
    report.show(report.load_record(setting, plan, result))
    if result.misses:
        total = len(result.misses) + len(result.answers)
        raise BenchError(f"{len(result.misses)} of {total} requests failed")


@bench_app.command()
def parity(
    suite: Annotated[str | None, typer.Option(help="One suite [default: all]")] = None,
    case: Annotated[str | None, typer.Option(help="The cases of that name")] = None,
    url: Annotated[str | None, typer.Option(help="Ask this server [default: servers it starts itself]")] = None,
    json: Annotated[bool, typer.Option("--json", help="Tables to stderr, one JSON document to stdout")] = False,
    every_case: Annotated[bool, typer.Option("--verbose", help="List the cases that agree too")] = False,
    fixtures: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="The fixtures [default: those of lattice]"),
    ] = None,
) -> None:
    """Replay the recorded contracts of both seeds and our own over real sockets, and tiny models with golden numbers.

    Suites: lattice-0.5.0, lattice-0.6.1, openai, models, greedy. The exit status is 4 when a case differs. With
    --url the cases that need a script, a policy or flags are skipped and counted.
    """
    from lattice_cli.bench import machine, parity_report
    from lattice_cli.bench.parity_suites import ParityPlan, run_parity
    from lattice_cli.errors import BenchError

    began_s = time.monotonic()
    verdicts = run_parity(ParityPlan(suite, case, url, fixtures))
    parity_report.show(verdicts, to_stderr=json, every_case=every_case)
    parity_report.footnotes(verdicts)
    if json:
        seconds = time.monotonic() - began_s
        parity_report.write(parity_report.record(verdicts, _command(), machine.versions(), seconds))
    if differ := sum(verdict.word == "differs" for verdict in verdicts):
        raise BenchError(f"{differ} of {len(verdicts)} cases differ")


def _command(secret: str | None = None) -> str:
    """The command line as it was typed, without the key."""
    words = ["lattice", *sys.argv[1:]]
    return shlex.join(word.replace(secret, "***") if secret else word for word in words)
