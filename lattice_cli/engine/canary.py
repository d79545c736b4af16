"""The canary: one short job on an empty backend, which tells an engine that is broken from requests that are.

Thread: worker
"""

from __future__ import annotations

from lattice_cli.engine.backend import Backend, Emitted
from lattice_cli.engine.row import Row
from lattice_cli.job import Job, Limits, Prompt, Sampling
from lattice_cli.model.card import ModelCard

STEPS = 8  # a prompt of one token has its first token out at the second or third


def makes_tokens(backend: Backend, card: ModelCard) -> bool:
    """Whether a backend without rows still makes a token. It has no rows afterwards. May raise what that raises."""
    job = Job("canary", Prompt(ids=(0,), text=""), Sampling(temperature=0.0), Limits(max_tokens=1))
    try:
        backend.insert(Row(job, card))
        return any(isinstance(outcome, Emitted) for _ in range(STEPS) for outcome in backend.advance())
    finally:
        backend.reset()
