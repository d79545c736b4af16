"""`lattice bench load`: options in, questions to a server, a report out.

Thread: any
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lattice_cli.bench.choices import JsonOption, SaveOption, TokensOption, WaitOption, WarmupsOption, counts
from lattice_cli.options import above_zero

if TYPE_CHECKING:
    from lattice_cli.bench.crowd import Pace
    from lattice_cli.bench.load import Target
    from lattice_cli.bench.load_report import LoadPoint
    from lattice_cli.bench.questions import Source


def load_command(
    url: Annotated[str, typer.Option(help="The server, with or without /v1")] = "http://127.0.0.1:11435",
    model: Annotated[str | None, typer.Option(help="As the server calls it [default: the first it lists]")] = None,
    clients: Annotated[str, typer.Option(metavar="N,N,...", help="Requests at once")] = "1",
    rate: Annotated[
        float | None,
        typer.Option(callback=above_zero, metavar="R", help="Requests a second at random times, whoever waits"),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(callback=above_zero, metavar="S", help="Seconds of each point, instead of --trials")
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prompts: JSON lines with `prompt` or `messages`, or ShareGPT")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Length of the prompt, in tokens")] = 512,
    tokens: TokensOption = 64,
    trials: Annotated[int, typer.Option(min=1, help="Requests of each client")] = 5,
    warmups: WarmupsOption = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Makes prompts of runs differ [default: the time]")] = None,
    target_first_token_ms: Annotated[
        float | None, typer.Option(callback=above_zero, metavar="MS", help="For goodput: first token within")
    ] = None,
    target_inter_token_ms: Annotated[
        float | None, typer.Option(callback=above_zero, metavar="MS", help="For goodput: mean time between tokens")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Count the replies' tokens with this model's tokenizer, too")
    ] = None,
    ignore_end: Annotated[
        bool, typer.Option("--ignore-end", help="Send `ignore_eos`, so that replies are as long as asked")
    ] = False,
    strain: Annotated[
        bool, typer.Option("--strain/--no-strain", help="First token beside long replies, and what a cancel costs")
    ] = True,
    timeout: Annotated[float, typer.Option(min=1, help="Longest silence of the server, in seconds")] = 600,
    api_key: Annotated[str | None, typer.Option(help="Sent as a bearer token")] = None,
    wait_quiet: WaitOption = 0,
    json: JsonOption = False,
    save: SaveOption = None,
) -> None:
    """What clients of an OpenAI-compatible server see: time to first token, tokens per second.

    Every prompt begins unlike any other, so no prompt cache helps. Empty, broken and refused replies are
    failures: they are listed, left out of the figures, and make the exit status 4; so does a usage that cannot be true.
    """
    from lattice_cli.bench import machine, record
    from lattice_cli.bench.crowd import Goal, Pace
    from lattice_cli.bench.load import read_target
    from lattice_cli.bench.load_report import load_record, show_load
    from lattice_cli.bench.questions import Source, read_dataset, token_counter
    from lattice_cli.bench.strain import run_strain

    outlet = record.Outlet(json, save)
    outlet.check()
    paces = [Pace(count, trials, duration, rate) for count in counts(clients, "--clients")]
    target = read_target(url, timeout, api_key, token_counter(tokenizer) if tokenizer else None)
    conversations = read_dataset(dataset) if dataset else ()
    name = named(target, model, url)
    seed = int(time.time()) if seed is None else seed
    source = Source(name, tokens, seed, 0, conversations, (("ignore_eos", True),) if ignore_end else ())
    before = machine.describe()
    source, asked = warmed(target, source, prompt_tokens, warmups)
    points = _points(target, source, paces[:1] if rate else paces, asked, wait_quiet)
    asked += sum(len(point.result.answers) + len(point.result.misses) for point in points)
    strained = (
        run_strain(target, source, max(pace.clients for pace in paces), min(trials, 5), asked) if strain else None
    )
    plan = {
        "prompt_tokens": None if dataset else prompt_tokens,
        "dataset": dataset.name if dataset else None,
        "max_tokens": tokens,
        "trials": trials,
        "duration_s": duration,
        "warmups": warmups,
        "seed": seed,
        "tokenizer": tokenizer is not None,
        "ignore_end": ignore_end,
    }
    setting = record.Setting(record.command_line(api_key), before, machine.versions(), name, {"url": url})
    goal = Goal(target_first_token_ms, target_inter_token_ms)
    show_load(load_record(setting, plan, points, goal, strained), outlet)
    _judge(points)


def named(target: Target, model: str | None, url: str) -> str:
    """The model to ask for. Raises: BenchError when the server lists none."""
    from lattice_cli.bench.load import first_model
    from lattice_cli.errors import BenchError

    name = model or first_model(target)
    if name is None:
        raise BenchError(f"`{url}` names no model", hint="start the server, or name one with --model")
    return name


def warmed(target: Target, source: Source, prompt_tokens: int, warmups: int) -> tuple[Source, int]:
    """The source with prose of the right length, after the warm-ups, and how many questions that took.

    Raises: BenchError when the server does not answer.
    """
    from dataclasses import replace

    from lattice_cli.bench.load import ask
    from lattice_cli.bench.questions import PROBE_WORDS, words_for
    from lattice_cli.console import say

    asked = 0
    if not source.conversations:
        source = replace(source, word_count=words_for(target, source, prompt_tokens))
        asked = len(PROBE_WORDS)
    for number in range(warmups):
        say(f"warm-up {number + 1} of {warmups}")
        ask(target, source.question(asked + number))
    return source, asked + warmups


def _points(target: Target, source: Source, paces: list[Pace], first: int, wait_quiet_s: float) -> list[LoadPoint]:
    from lattice_cli.bench.crowd import run_pace
    from lattice_cli.bench.load_report import LoadPoint, heading
    from lattice_cli.bench.noise import Watch
    from lattice_cli.console import say

    watch, points = Watch(), list[LoadPoint]()
    for pace in paces:
        say(heading({"rate_s": pace.rate_s, "clients": pace.clients}))
        watch.begin(wait_quiet_s)
        result = run_pace(target, source, pace, first)
        points.append(LoadPoint(pace, result, watch.end()))
        first += len(result.answers) + len(result.misses)
    return points


def _judge(points: list[LoadPoint]) -> None:
    """Raises: BenchError when requests failed, or the server's usage cannot be true."""
    from lattice_cli.errors import BenchError

    misses = sum(len(point.result.misses) for point in points)
    answers = [answer for point in points for answer in point.result.answers]
    if misses:
        raise BenchError(f"{misses} of {misses + len(answers)} requests failed")
    if doubts := [answer.doubt for answer in answers if answer.doubt]:
        raise BenchError(f"the server's usage cannot be true in {len(doubts)} of {len(answers)} replies: {doubts[0]}")
