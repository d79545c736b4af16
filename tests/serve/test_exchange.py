"""From a body to jobs: where each sampling value comes from; and a broken engine, seen from outside.

Thread: any
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lattice_cli.engine.engine import Engine
from lattice_cli.engine.open import OpenEngine
from lattice_cli.engine.row import Row
from lattice_cli.engine.worker import State
from lattice_cli.job import Job, Limits, Sampling, SamplingChoice
from lattice_cli.policy import Policy
from lattice_cli.prompt.template import BARE_CHATML
from lattice_cli.settings import EngineSettings
from tests.engine.fake import CountingBackend
from tests.engine.letters import LETTERS
from tests.serve.stage import PATH, body, eventually, stage, with_settings

pytestmark = pytest.mark.wire

CARD = replace(LETTERS, chat_template=BARE_CHATML)
SETTINGS = EngineSettings(max_rows=4, max_pending=4)


class RecordingBackend(CountingBackend):
    """Keeps the jobs it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []

    def insert(self, row: Row) -> None:
        self.jobs.append(row.job)
        super().insert(row)


def opener(backend: CountingBackend, sampling: SamplingChoice = SamplingChoice()) -> Callable[[], OpenEngine]:
    card = replace(CARD, sampling=sampling)
    return lambda: OpenEngine(card, Engine(card, backend, SETTINGS))


def jobs(said: dict[str, Any], *, model: SamplingChoice = SamplingChoice(), **settings: Any) -> list[Job]:
    """The jobs that a body becomes."""
    backend = RecordingBackend()
    with stage(opener=opener(backend, model), settings=with_settings(**settings)) as house, house.client() as one:
        assert one.post(PATH, json=said).status_code == 200
    return backend.jobs


def test_a_value_comes_from_the_request_then_the_flag_then_the_model_then_the_built_in() -> None:
    """Report 110: what a model recommends was ignored."""
    flags = SamplingChoice(temperature=0.2, top_k=5, seed=1)
    model = SamplingChoice(temperature=0.3, top_k=6, top_p=0.6, min_p=0.2)
    (job,) = jobs(body(temperature=0.1, max_tokens=2), sampling=flags, model=model)
    assert job.sampling == Sampling(
        temperature=0.1, top_k=5, top_p=0.6, min_p=0.2, repetition_penalty=1.0, presence_penalty=0.0,
        frequency_penalty=0.0, seed=1,
    )  # fmt: skip


def test_a_policy_decides_whether_the_model_is_asked_and_what_is_built_in() -> None:
    old = Policy("old", model_defaults=False, repetition_penalty=1.1)
    (job,) = jobs(body(max_tokens=2), policy=old, model=SamplingChoice(temperature=0.3))
    assert job.sampling == Sampling(temperature=0.7, top_k=50, top_p=0.9, repetition_penalty=1.1)


def test_n_choices_are_jobs_of_one_prompt_with_their_own_index() -> None:
    made = jobs(body(n=3, max_tokens=2, stop=["zz"]))
    assert [job.choice for job in made] == [0, 1, 2]
    assert len({job.id for job in made}) == 3
    assert len({job.prompt for job in made}) == 1
    assert {job.limits for job in made} == {Limits(2, ("zz",))}
    assert made[0].prompt.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_broken_engine_is_told_by_health_and_by_every_request() -> None:
    """A thread that dies quietly while `/health` says yes is how mlx_lm.server fails."""
    backend = CountingBackend(faults=lambda rows: RuntimeError("no device"))
    with stage(opener=opener(backend), engine=SETTINGS) as house, house.client() as one:
        for _ in range(3):
            answer = one.post(PATH, json=body())
            assert (answer.status_code, answer.json()["error"]["message"]) in (
                (500, "generation failed"),
                (503, "the engine has failed and must be restarted"),
            )
        eventually(lambda: house.worker.state is State.BROKEN)
        health = one.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "broken"})
        answer = one.post(PATH, json=body(stream=True))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
        assert "no device" not in answer.text
