"""The engine of this process as a partner: questions become jobs of its worker.

Thread: any
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lattice_cli.chat.partner import Count, Partner, Question
from lattice_cli.engine.guide import compile_guide
from lattice_cli.engine.worker import EngineWorker, Ticket, new_job_id
from lattice_cli.errors import InvalidField, LatticeError
from lattice_cli.job import Channel, Constraint, Job, Limits, Prompt, Sampling, SamplingChoice
from lattice_cli.model.card import ModelCard, ModelSource
from lattice_cli.policy import OPENAI
from lattice_cli.prompt.template import RenderOptions, render_chat
from lattice_cli.prompt.thinking import thinking_of
from lattice_cli.prompt.traits import traits_of

STOP_S = 30.0  # for another model: the old one must be gone before the new one is read
FLOOR = Sampling(repetition_penalty=OPENAI.repetition_penalty)

Find = Callable[[str], ModelSource]  # raises: LatticeError where there is no such model
Open = Callable[[ModelSource], tuple[EngineWorker, ModelCard]]  # blocks until it is loaded; raises what loading raises


class EnginePartner:
    """A worker and its model. `find` and `reopen` bring another model; without them there is no other."""

    def __init__(
        self,
        worker: EngineWorker,
        card: ModelCard,
        source: ModelSource | None = None,
        find: Find | None = None,
        reopen: Open | None = None,
        names: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        self.worker, self.card = worker, card
        self._source, self._find, self._reopen, self._names = source, find, reopen, names
        self._rendered: tuple[Question, Prompt] | None = None

    @property
    def name(self) -> str:
        return self.card.served_id

    @property
    def context_tokens(self) -> int | None:
        return self.card.context_tokens

    @property
    def advice(self) -> SamplingChoice:
        """What the model recommends."""
        return self.card.sampling if OPENAI.model_defaults else SamplingChoice()

    @property
    def floor(self) -> Sampling:
        return FLOOR

    def count(self, question: Question) -> Count:
        return Count(len(self._prompt(question).ids))

    def ask(self, question: Question, max_tokens: int | None) -> Ticket:
        prompt = self._prompt(question)
        room = self.card.context_tokens - len(prompt.ids) - 1
        limits = question.manner.limits(room if max_tokens is None else max_tokens)
        sampling = question.manner.sampling(self.advice, FLOOR)
        self._check_ids(sampling, limits)
        job = Job(
            new_job_id(),
            prompt,
            sampling,
            self._limits(question, limits, prompt),
            constraint=self._constraint(question, prompt),
        )
        return self.worker.submit([job])

    def models(self) -> Sequence[str]:
        return [self.name, *(name for name in self._names() if name != self.name)]

    def switched(self, name: str) -> Partner:
        if self._find is None or self._reopen is None or self._source is None:
            raise LatticeError("there is no other model here")
        source = self._find(name)
        if source == self._source:
            return self
        self.worker.stop(STOP_S)
        try:
            worker, card = self._reopen(source)
        except LatticeError as error:
            self.worker, self.card = self._reopen(self._source)
            raise LatticeError(f"{error.message}; `{self.name}` stays", param=error.param, hint=error.hint) from error
        return EnginePartner(worker, card, source, self._find, self._reopen, self._names)

    def close(self, timeout_s: float) -> bool:
        return self.worker.stop(timeout_s)

    def _prompt(self, question: Question) -> Prompt:
        """Rendered once for a question: it is counted first, then asked."""
        if self._rendered is None or self._rendered[0] != question:
            thinking = thinking_of(None, switch=traits_of(self.card).thinking_switch, enabled=_wish(question))
            options = RenderOptions(continue_final_message=question.continues, enable_thinking=thinking.enabled)
            self._rendered = question, render_chat(self.card, question.turns, options=options)
        return self._rendered[1]

    def _limits(self, question: Question, limits: Limits, prompt: Prompt) -> Limits:
        """Thoughts that are not wanted, and that the template cannot switch off, are closed at once."""
        if question.thinks or self.card.think is None or traits_of(self.card).thinking_switch:
            return limits
        return replace(limits, reasoning_tokens=0 if prompt.opens_in is Channel.REASONING else 1)

    def _check_ids(self, sampling: Sampling, limits: Limits) -> None:
        """Raises: InvalidField for an id that the vocabulary lacks; on a CPU it would end the process."""
        size = self.card.tokenizer.vocabulary_size
        named = [("logit_bias", token_id) for token_id, _ in sampling.logit_bias]
        for name, token_id in [*named, *(("stop_token_ids", token_id) for token_id in limits.stop_ids)]:
            if token_id >= size:
                raise InvalidField(f"`{name}` names the token {token_id}, and there are {size}", param=name)

    def _constraint(self, question: Question, prompt: Prompt) -> Constraint | None:
        if question.schema is None:
            return None
        constraint = Constraint("json_schema", question.schema)
        compile_guide(self.card, constraint, "--schema")
        thoughtless = not question.thinks and traits_of(self.card).thinking_switch
        if self.card.think is None or (thoughtless and prompt.opens_in is Channel.ANSWER):
            return constraint
        return Constraint("json_schema", question.schema, opens_after=self.card.think[1])


def _wish(question: Question) -> bool | None:
    return None if question.thinks else False
