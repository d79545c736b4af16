"""`lattice bench compare`: who takes part, turns, a report out.

Thread: any
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import ExitStack
from typing import Annotated

import typer

from lattice_cli.bench.choices import JsonOption, NoisyOption, SaveOption, TokensOption, WaitOption, WarmupsOption


def compare_command(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET",
            help="Each a URL, `serve:COMMAND {port}`, or a model that `lattice serve` serves; `#NAME` at the end "
            "of the first two is the model to ask for",
        ),
    ],
    model: Annotated[str | None, typer.Option(help="The model to ask each server for [default: its first]")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds A B B A; fewer than 6 can tell no difference")] = 8,
    prompt_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Length of the prompt, by A's count")] = 512,
    tokens: TokensOption = 64,
    warmups: WarmupsOption = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Of prompts and intervals [default: the time]")] = None,
    ignore_end: Annotated[
        bool, typer.Option("--ignore-end", help="Send `ignore_eos`, so that replies are as long as asked")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Longest silence of a server, in seconds")] = 600,
    start: Annotated[float, typer.Option(min=1, metavar="S", help="Longest start of a server, in seconds")] = 300,
    wait_quiet: WaitOption = 0,
    noisy_share: NoisyOption = 0.1,
    json: JsonOption = False,
    save: SaveOption = None,
) -> None:
    """Servers or models by turns, A B B A, the same questions to each: ratios with bootstrap intervals.

    Faster or slower is said only where the interval does not hold 1. What is started here is ended here, with all its
    processes. The exit status is 4 when a request failed.
    """
    from lattice_cli.bench import compare, machine, record
    from lattice_cli.bench.compare_report import compare_record, show_compare
    from lattice_cli.bench.contender import Contender, check_model, read_entry
    from lattice_cli.bench.load import ask
    from lattice_cli.bench.load_command import warmed
    from lattice_cli.bench.noise import Watch
    from lattice_cli.bench.questions import Source
    from lattice_cli.bench.reading import Miss
    from lattice_cli.console import say
    from lattice_cli.errors import BenchError, UsageError

    if not 2 <= len(targets) <= 26:
        raise UsageError("a comparison is of two to 26", hint="as `lattice bench compare MODEL http://127.0.0.1:8080`")
    outlet = record.Outlet(json, save)
    outlet.check()
    entries = [read_entry(text, model) for text in targets]
    for text in targets:
        check_model(text)
    seed = int(time.time()) if seed is None else seed
    before = machine.describe()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended then, too
    with ExitStack() as running:
        contenders = []
        for place, entry in enumerate(entries):
            say(f"{compare.letter(place)}: {entry.label}")
            contenders.append(running.enter_context(Contender(entry, timeout, start)))
        more = (("ignore_eos", True),) if ignore_end else ()
        source = Source(contenders[0].model, tokens, seed, more=more)
        source, asked = warmed(contenders[0].target, source, prompt_tokens, 0)
        for contender in contenders:
            for number in range(warmups):
                ask(contender.target, compare.for_model(source.question(asked + number), contender.model))
        watch = Watch(noisy_share, lambda: time.process_time() + sum(one.used_s() for one in contenders))
        turns = []
        for turn in compare.run_turns(contenders, source, rounds, asked + warmups, watch, wait_quiet):
            turns.append(turn)
            if turn.place == 0 and len(turns) % (2 * len(contenders)) == 0:
                say(f"round {turn.round + 1} of {rounds}")
    plan = {"prompt_tokens": prompt_tokens, "max_tokens": tokens, "rounds": rounds, "warmups": warmups, "seed": seed}
    setting = record.Setting(record.command_line(), before, machine.versions(), contenders[0].model, {})
    show_compare(compare_record(setting, plan, contenders, turns), outlet)
    if misses := [turn for turn in turns if isinstance(turn.outcome, Miss)]:
        raise BenchError(f"{len(misses)} of {len(turns)} requests failed")
