"""`lattice bench parity --against URL`: our engine and a server asked the same, and what came of it.

Thread: any
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lattice_cli import console
from lattice_cli.bench import machine
from lattice_cli.bench.load import first_model, read_target
from lattice_cli.bench.parity_against import Beside, ask_both
from lattice_cli.bench.prose import words
from lattice_cli.bench.questions import Messages, read_dataset
from lattice_cli.bench.record import Outlet, Setting, command_line, figure, head
from lattice_cli.engine.open import open_engine
from lattice_cli.engine.worker import EngineWorker
from lattice_cli.errors import BenchError
from lattice_cli.model.locate import find_model
from lattice_cli.settings import EngineSettings, read_home

QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "Count from one to twenty.",
    "What is 17 + 25? Answer with the number alone.",
    "Write a haiku about the sea.",
    "Translate to German: The cat sits on the table.",
    "Write a Python function that reverses a string.",
)
STORY_WORDS = (60, 300)
DEFINITIONS = {
    "token": "number of the first of our tokens that their text does not go on with, from 0",
    "margin": "our logit of our likeliest token there less that of our second",
    "behind": "our logit of our likeliest token there less that of theirs; none beyond our first 20",
    "near tie": "theirs is less than --margin behind ours: float error or quantization can turn that",
}


@dataclass(frozen=True, slots=True)
class BesidePlan:
    """`model` is ours, `served` what the server calls its; None is the default and the first it lists."""

    url: str
    model: str | None = None
    served: str | None = None
    prompts: Path | None = None
    tokens: int = 64
    margin: float = 0.5
    timeout_s: float = 600.0


def default_prompts() -> tuple[Messages, ...]:
    """Short questions, and stories to go on with."""
    stories = (f"{words(count, count)}\nWhat happened here? Tell it in your own words." for count in STORY_WORDS)
    return tuple((("user", text),) for text in (*QUESTIONS, *stories))


def run_beside(plan: BesidePlan, outlet: Outlet) -> None:
    """Ask both and report. Raises: BenchError (exit 4) when a reply failed or differs by more than `plan.margin`."""
    outlet.check()
    home, settings = read_home(), EngineSettings()
    prompts = read_dataset(plan.prompts) if plan.prompts else default_prompts()
    target = read_target(plan.url, plan.timeout_s)
    name = plan.served or first_model(target)
    if name is None:
        raise BenchError(f"`{plan.url}` names no model", hint="start the server, or name its model with --served")
    source, before = find_model(plan.model, home), machine.describe()
    worker = EngineWorker(lambda: open_engine(source, home, settings), settings)
    worker.start()
    try:
        found = []
        for beside in ask_both(worker, target, name, prompts, plan.tokens):
            found.append(beside)
            console.say(f"{len(found)} of {len(prompts)}: {beside.word(plan.margin)}")
        served_id = worker.wait_ready().served_id
    finally:
        worker.stop()
    setting = Setting(command_line(), before, machine.versions(), served_id, {"against": plan.url, "served": name})
    _show(beside_record(setting, plan, found), outlet)
    wrong = sum(beside.word(plan.margin) in ("differs", "failed") for beside in found)
    if wrong:
        raise BenchError(f"{wrong} of {len(found)} replies differ")


def beside_record(setting: Setting, plan: BesidePlan, found: Sequence[Beside]) -> dict[str, Any]:
    """As values JSON can hold."""
    return {
        **head("parity", setting, 0),
        "plan": {"tokens": plan.tokens, "margin": plan.margin, "prompts": len(found)},
        "prompts": [{"verdict": beside.word(plan.margin), **asdict(beside)} for beside in found],
        "definitions": DEFINITIONS,
    }


def _show(record: Mapping[str, Any], outlet: Outlet) -> None:
    rows = [_row(one) for one in record["prompts"]]
    outlet.table(("", "verdict", "same", "margin", "behind", "ours", "theirs"), rows)
    for one in record["prompts"]:
        ours, theirs = one["prompt_tokens"]
        if theirs and ours != theirs:
            console.say(f"prompt {one['number']}: {ours} tokens here and {theirs} there, so the templates differ")
    verdicts = [one["verdict"] for one in record["prompts"]]
    counted = ", ".join(f"{verdicts.count(word)} {word}" for word in ("same", "near tie", "differs", "failed"))
    console.say(f"{record['model']} beside {record['served']}, greedy: {counted}")
    outlet.write(record)


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    there = one["parting"]
    if there is None:
        return (str(one["number"]), one["verdict"], str(one["tokens"]), "-", "-", "", one["miss"] or "")
    numbers = ("-" if there[name] is None else figure(there[name]) for name in ("margin", "behind"))
    texts = (repr(there[name][:12]) for name in ("ours", "theirs"))
    return (str(one["number"]), one["verdict"], str(there["token"]), *numbers, *texts)
