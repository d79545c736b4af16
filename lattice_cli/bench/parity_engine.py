"""The real engine, asked one prompt at a time, greedily, and compared with what another engine said.

Replies come as text, so a differing token is found as the longest run of golden tokens the text begins with. To prompts
that are ids alone the reply is ids as well, overheard between engine and backend.

Thread: any
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from lattice_cli.bench.parity_rule import Divergence, shown
from lattice_cli.conversation import said
from lattice_cli.engine.completion import Completion
from lattice_cli.engine.measure_ids import Overheard
from lattice_cli.engine.open import open_engine
from lattice_cli.engine.worker import EngineWorker, new_job_id
from lattice_cli.job import Job, Limits, Prompt, Sampling
from lattice_cli.model.card import ModelCard, ModelSource
from lattice_cli.prompt.template import render_chat
from lattice_cli.settings import EngineSettings, Home

REPLY_S = 300.0


class AskedEngine:
    """A model behind an EngineWorker, asked one prompt at a time. Use as a context manager."""

    def __init__(self, source: ModelSource, home: Home) -> None:
        settings = EngineSettings()
        self._heard: dict[str, list[int]] = {}  # job id -> the ids it was given
        watch = partial(Overheard, heard=self._heard)
        self._worker = EngineWorker(lambda: open_engine(source, home, settings, watch=watch), settings)

    def __enter__(self) -> AskedEngine:
        self._worker.start()
        self._card = self._worker.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.stop()

    def wrong_prompt(self, text: str, wanted: Sequence[int]) -> Divergence | None:
        """The first token id of the rendered prompt that differs."""
        ids = self._render(text).ids
        if tuple(ids) == tuple(wanted):
            return None
        same = next((at for at, pair in enumerate(zip(ids, wanted, strict=False)) if pair[0] != pair[1]), len(ids))
        return Divergence(
            f"prompt token {same}", shown(list(wanted[same : same + 4])), shown(list(ids[same : same + 4]))
        )

    def wrong_count(self, text: str, wanted: int) -> Divergence | None:
        count = len(self._render(text).ids)
        return None if count == wanted else Divergence("prompt tokens", str(wanted), str(count))

    def wrong_reply(self, text: str, wanted: Sequence[int]) -> Divergence | None:
        """The first greedy token that differs, of as many as are wanted."""
        job = _greedy_job(self._render(text), Limits(max_tokens=max(1, len(wanted))))
        reply = self._ask(job)
        if reply.finished is None:
            return _endless(reply)
        return _first_difference(self._card, wanted, reply.answer, reply.finished.usage.completion_tokens)

    def wrong_tokens(self, ids: Sequence[int], wanted: Sequence[int]) -> Divergence | None:
        """The first greedy token that differs, of as many as are wanted, after a prompt that is ids alone. Ends are
        tokens like any other.
        """
        job = _greedy_job(Prompt(tuple(ids), ""), Limits(max_tokens=max(1, len(wanted)), ignore_end=True))
        heard = self._heard[job.id] = []
        reply = self._ask(job)
        if reply.finished is None:
            return _endless(reply)
        there = next((at for at, token in enumerate(wanted) if heard[at : at + 1] != [token]), None)
        if there is None:
            return None
        return Divergence(f"token {there}", shown(list(wanted[there : there + 4])), shown(heard[there : there + 4]))

    def _ask(self, job: Job) -> Completion:
        ticket, reply = self._worker.submit([job]), Completion(job.id)
        until_s = time.monotonic() + REPLY_S
        while not ticket.done and time.monotonic() < until_s:
            if (event := ticket.next(1.0)) is not None:
                reply.add(event)
        return reply

    def _render(self, text: str) -> Prompt:
        return render_chat(self._card, [said("user", text)])


def _greedy_job(prompt: Prompt, limits: Limits) -> Job:
    return Job(new_job_id(), prompt, Sampling(temperature=0.0), limits, reasoning_apart=False)


def _endless(reply: Completion) -> Divergence:
    return Divergence("reply", "an end", str(reply.failed.error) if reply.failed else "none in time")


def _first_difference(card: ModelCard, wanted: Sequence[int], text: str, tokens: int) -> Divergence | None:
    decode = card.tokenizer.decode
    if decode(wanted) == text and tokens == len(wanted):
        return None
    same = max(at for at in range(len(wanted) + 1) if text.startswith(decode(wanted[:at])))
    expected = decode(wanted[same : same + 4]) if same < len(wanted) else "the end"
    return Divergence(f"token {same}", shown(expected), shown(text[len(decode(wanted[:same])) :][:40]))
