"""`lattice bench speed`: options in, trials, a report out.

Thread: any
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lattice_cli.bench.choices import (
    JsonOption,
    NoisyOption,
    SaveOption,
    TokensOption,
    WaitOption,
    WarmupsOption,
    counts,
    names,
)
from lattice_cli.options import KernelsOption, ThreadsOption

if TYPE_CHECKING:
    from lattice_cli.bench.record import Outlet
    from lattice_cli.bench.speed import SpeedPlan
    from lattice_cli.model.card import ModelSource
    from lattice_cli.model.random_weights import RandomModel
    from lattice_cli.settings import Home


def speed_command(
    model: Annotated[str | None, typer.Option(help="Name, folder, .gguf file, org/repo or script:FILE")] = None,
    random_weights: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG.json", help="No model: random weights for this config, of any type mlx-lm knows"),
    ] = None,
    bits: Annotated[int, typer.Option(min=2, max=8, help="Of random weights")] = 4,
    group: Annotated[int, typer.Option(min=16, help="Random weights that share a scale")] = 64,
    dtype: Annotated[str | None, typer.Option(help="Dense random weights: float32, bfloat16 or float16")] = None,
    prompt_tokens: Annotated[str, typer.Option(metavar="N,N,...", help="Lengths of the prompts, in tokens")] = "512",
    tokens: TokensOption = 64,
    rows: Annotated[str, typer.Option(metavar="N,N,...", help="Replies at once")] = "1",
    grammar: Annotated[
        str, typer.Option(metavar="NAME,...", help="free, json (a JSON schema holds the reply)")
    ] = "free",
    prefix: Annotated[
        str,
        typer.Option(metavar="NAME,...", help="cold, warm (all but the end read before), edited (its middle changed)"),
    ] = "cold",
    trials: Annotated[int, typer.Option(min=1, help="Trials of each point that count")] = 5,
    warmups: WarmupsOption = 1,
    seed: Annotated[int, typer.Option(min=0, help="Changes the prompts")] = 0,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="By turns also: mlx-lm (its own loop and network), transformers (Hugging Face's, compiled by torch; "
            "dense weights only, so no --bits)",
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show how near the limit is reckoned")] = False,
    prefill_chunk: Annotated[
        int | None, typer.Option(min=1, help="Prompt tokens read between two steps [default: 512; 128 on a slow CPU]")
    ] = None,
    wait_quiet: WaitOption = 0,
    noisy_share: NoisyOption = 0.1,
    json: JsonOption = False,
    save: SaveOption = None,
    kernels: KernelsOption = None,
    threads: ThreadsOption = None,
) -> None:
    """Prefill and decode speed of the engine itself, without HTTP.

    Every combination of lengths, rows, grammars and prefixes is a point with trials of its own. The table goes to
    stdout and, in a pipe, one line of JSON after it, with every trial, the machine and the versions.
    """
    from lattice_cli.bench.record import Outlet
    from lattice_cli.bench.speed import GRAMMARS, PREFIXES, RIVALS, SpeedPlan
    from lattice_cli.errors import UsageError
    from lattice_cli.model.locate import find_model
    from lattice_cli.model.random_weights import RandomModel
    from lattice_cli.settings import read_home

    home = read_home(kernels=kernels, threads=threads)
    plan = SpeedPlan(
        prompt_tokens=counts(prompt_tokens, "--prompt-tokens"),
        tokens=tokens,
        rows=counts(rows, "--rows"),
        grammars=names(grammar, GRAMMARS, "--grammar"),
        prefixes=names(prefix, PREFIXES, "--prefix"),
        trials=trials,
        warmups=warmups,
        seed=seed,
        wait_quiet_s=wait_quiet,
    )
    outlet = Outlet(json, save)
    outlet.check()
    rivals = () if reference is None else names(reference, RIVALS, "--reference")
    if model is not None and random_weights is not None:
        raise UsageError("`--model` and `--random-weights` exclude each other", param="--random-weights")
    if dtype not in (None, "float32", "bfloat16", "float16"):
        raise UsageError(f"`--dtype` knows no `{dtype}`", param="--dtype", hint="float32, bfloat16 or float16")
    source = (
        find_model(model, home) if random_weights is None else RandomModel(random_weights, bits, group, dtype, seed)
    )
    if rivals and getattr(source, "kind", "") == "script":
        raise UsageError("a script has no network to compare with", param="--reference")
    _measure(source, home, plan, outlet, _Wishes(rivals, explain, noisy_share, prefill_chunk))


@dataclass(frozen=True, slots=True)
class _Wishes:
    rivals: tuple[str, ...]
    explain: bool
    noisy_share: float
    prefill_chunk: int | None


def _measure(source: ModelSource | RandomModel, home: Home, plan: SpeedPlan, outlet: Outlet, wishes: _Wishes) -> None:
    """Load, run every point with a line on stderr for every trial, unload, report."""
    from lattice_cli.bench import machine, record
    from lattice_cli.bench.energy import find_meter
    from lattice_cli.bench.gpu_trace import find_trace
    from lattice_cli.bench.noise import Watch
    from lattice_cli.bench.rival import TRANSFORMERS, TransformersRival
    from lattice_cli.bench.speed import Gauges
    from lattice_cli.bench.speed_report import Facts, show_speed, speed_record
    from lattice_cli.bench.speed_turns import Rival, run_turns
    from lattice_cli.console import say
    from lattice_cli.engine.measure import Workbench
    from lattice_cli.settings import EngineSettings

    before = machine.describe()
    script = getattr(source, "kind", "") == "script"
    settings = EngineSettings(max_rows=max(8, *plan.rows), prefill_chunk=wishes.prefill_chunk)
    with ExitStack() as stack:
        other = TransformersRival(source, home.threads) if TRANSFORMERS in wishes.rivals else None
        if other is not None:
            stack.enter_context(other)
        bench = stack.enter_context(Workbench(source, home, settings))
        for note in bench.card.notes:
            say(note)
        plan.check(bench.card)
        rivals = {}
        for name in wishes.rivals:
            if other is not None and name == TRANSFORMERS:
                other.load()
                rivals[name] = Rival(other.run, other.prepare, here=False)
            else:
                rivals[name] = Rival(bench.run_reference)
        computing: dict[str, Any] = {} if script else machine.computing(home)
        meters = find_meter(computing.get("backend"))
        own_s = (lambda: time.process_time() + other.used_s()) if other is not None else time.process_time
        gauges = Gauges(Watch(wishes.noisy_share, own_s), meters.meter)
        points = run_turns(bench.card, bench.run, plan, gauges, rivals, lambda: find_trace(computing.get("backend")))
        card, path = bench.card, getattr(source, "path", None)
        peaks = machine.peak_memory_bytes(), bench.device_peak_bytes()  # before the limits, which take 0.5 GB
        facts = Facts(
            load_s=bench.load_s,
            peak_memory_bytes=peaks[0],
            device_peak_bytes=peaks[1],
            model_hash=machine.model_hash(path) if path else None,
            weights=bench.weights(),
            machine=None if script else bench.machine(home.threads or before.cores),
            energy_source=meters.meter.source if meters.meter else f"not told: {meters.reason}",
        )
    about = {
        "format": card.format.kind,
        "architecture": card.format.architecture,
        "quantization": card.format.quantization,
        "notes": list(card.notes),
        **computing,
        **({"rivals": {TRANSFORMERS: other.facts}} if other is not None else {}),
    }
    setting = record.Setting(record.command_line(), before, machine.versions(), card.served_id, about)
    show_speed(speed_record(setting, plan, points, facts), outlet, explain=wishes.explain)
