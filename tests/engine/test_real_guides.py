"""The real small model under ten schemas: every reply is valid by the jsonschema package.

Thread: any
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lattice_cli.conversation import said
from lattice_cli.engine.completion import Completion
from lattice_cli.engine.guide import compile_guide
from lattice_cli.engine.open import open_engine
from lattice_cli.engine.worker import EngineWorker, new_job_id
from lattice_cli.job import Constraint, Job, Limits, Sampling
from lattice_cli.model.card import ModelSource
from lattice_cli.prompt.template import render_chat
from lattice_cli.settings import EngineSettings, Home
from tests.model.real import smollm2

pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]

CACHE = Path("~/.cache/lattice-tests").expanduser()
# Everything has a bound: a model this small says `1111...` for a number that has none, up to the limit.
WORD = {"type": "string", "maxLength": 20}
HOUSE = {"type": "integer", "minimum": 1, "maximum": 999}


def closed(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """An object of these properties and no others."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": closed({"name": WORD, "age": {"type": "integer", "minimum": 0, "maximum": 150}}),
    "nested": closed({"person": closed({"name": WORD, "home": closed({"street": WORD, "number": HOUSE})})}),
    "enums": closed({"colour": {"enum": ["red", "grün", "青", None, 7]}, "size": {"enum": ["S", "M"]}}),
    "arrays": closed({"tags": {"type": "array", "items": WORD, "minItems": 2, "maxItems": 4}}),
    "rows": {
        "type": "array",
        "items": closed({"x": {"enum": [0.5, -1e3, 2]}, "y": {"type": "boolean"}}),
        "maxItems": 3,
    },
    "unicode": closed({"größe": WORD, "名前": {"type": "string", "minLength": 1, "maxLength": 6}}),
    "bounds": closed(
        {"share": {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "multipleOf": 0.25}, "odd": {"const": -3}}
    ),
    "patterns": closed(
        {"id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}, "day": {"type": "string", "format": "date"}}
    ),
    "either": {
        "anyOf": [closed({"yes": WORD}), closed({"no": {"type": "array", "items": {"type": "null"}, "maxItems": 2}})]
    },
    "shared": {
        "$defs": {"leaf": closed({"value": HOUSE}, note=WORD)},
        **closed({"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}}),
    },
}
ASKED = ("Tell me about Ada Lovelace.", "Answer in prose, never in JSON.", "Bonjour! 你好!", "List three fruits.")


def replies(count: int) -> list[tuple[str, str, str]]:
    """(schema, text, finish reason) of `count` replies under each schema, all in one crowd."""
    file = smollm2()
    home = Home(CACHE, CACHE / "models", kernels="fast")
    worker = EngineWorker(lambda: open_engine(ModelSource("m", file, "gguf"), home, EngineSettings()), EngineSettings())
    worker.start()
    try:
        card = worker.wait_ready(120.0)
        jobs, names = [], {}
        for name, schema in SCHEMAS.items():
            constraint = Constraint("json_schema", json.dumps(schema))
            compile_guide(card, constraint)
            for number in range(count):
                prompt = render_chat(card, [said("user", ASKED[number % len(ASKED)])])
                job = Job(new_job_id(), prompt, Sampling(seed=number), Limits(250), constraint=constraint)
                jobs.append(job)
                names[job.id] = name
        ticket = worker.submit(jobs)
        folds = {job.id: Completion(job.id) for job in jobs}
        while (event := ticket.next(120.0)) is not None:
            folds[event.job_id].add(event)
        return [
            (names[key], fold.answer, fold.finished.reason if fold.finished else "failed")
            for key, fold in folds.items()
        ]
    finally:
        worker.stop()


def check(count: int) -> None:
    told = replies(count)
    assert len(told) == count * len(SCHEMAS)
    for name, text, reason in told:
        assert reason == "stop", (name, text)
        jsonschema.validate(json.loads(text), SCHEMAS[name], format_checker=jsonschema.FormatChecker())


def test_twenty_replies_under_ten_schemas_are_valid() -> None:
    check(2)


@pytest.mark.slow
def test_two_hundred_replies_under_ten_schemas_are_valid() -> None:
    check(20)
