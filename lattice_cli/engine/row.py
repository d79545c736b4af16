"""The state of one running job; the only mutable thing that travels through the engine.

Knows tokens and text; knows no tensors and no queue.

Thread: worker
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lattice_cli.engine.calls import call_parser
from lattice_cli.engine.guide import compile_guide
from lattice_cli.engine.reasoning import Marker, ReasoningBudget
from lattice_cli.engine.reply import Reply, Score
from lattice_cli.engine.text import StopScanner
from lattice_cli.errors import EngineFault, LatticeError
from lattice_cli.events import Event, Failed, Finished, FinishReason, Prefilled, Started, Timing, TokenScore, Usage
from lattice_cli.job import Channel, Job
from lattice_cli.model.card import ModelCard
from lattice_cli.prompt.markers import markers_of

if TYPE_CHECKING:
    from lattice_cli.engine.guided import RowGuide


@dataclass(eq=False, slots=True)
class Choices:
    """Rows of one prompt, which is read once for all of them. `waiting` are the ids of those that have not got it
    yet, so the copy of its cache is kept while there is one.
    """

    waiting: set[str] = field(default_factory=set)


class Row:
    """One job in the engine: what was emitted, what text is certain, and how it ended.

    `emitted` are the token ids delivered so far, so `prompt.ids + emitted` rebuilds the row's cache.
    `fault` is set by whoever finds that this row, and no other, cannot go on. `guide` is the grammar's state in the
    backend, which advances it before it gives a token out.

    Raises: InvalidField for a constraint that cannot be enforced, UnsupportedField for calls that nobody reads.
    """

    def __init__(self, job: Job, card: ModelCard, choices: Choices | None = None) -> None:
        self.job = job
        self.choices = choices
        self.guide: RowGuide | None = None
        self.emitted: list[int] = []
        self.cached_tokens = 0  # of its prompt, that nobody read for it; the backend sets it
        self.fault: LatticeError | None = None
        self.ended = False
        self._tokenizer = card.tokenizer
        self._think = markers_of(card).think
        self._compiled = None if job.constraint is None else compile_guide(card, job.constraint)
        free = job.limits.ignore_end and job.constraint is None  # a grammar says itself when it is fulfilled
        self.end_ids = job.limits.stop_ids | (frozenset() if free else card.end_ids)
        calls = call_parser(job.speech) if job.speech is not None else None
        self._reply = Reply(job, card.tokenizer, self._think, calls)
        self._closing = StopScanner((self._think[1],) if self._think else ())
        self._closed_at: int | None = None  # tokens out when the closing marker was whole
        self._reasoning_tokens = 0
        self._started_s: float | None = None
        self._prefilled_s: float | None = None
        self._first_token_s: float | None = None

    @property
    def ids(self) -> list[int]:
        """A fresh list of all ids the row stands for: prompt and reply."""
        return [*self.job.prompt.ids, *self.emitted]

    @property
    def prompt_tokens(self) -> int:
        return len(self.job.prompt.ids)

    @property
    def decoding(self) -> bool:
        """The prompt is read; tokens come."""
        return self._prefilled_s is not None

    def budget(self) -> ReasoningBudget | None:
        """A fresh thinking budget for an insertion into a backend; None where there is nothing to force."""
        tokens = self.job.limits.reasoning_tokens
        held = self.job.constraint is not None and not self.job.constraint.opens_after
        if tokens is None or self._think is None or held:
            return None
        opening, closing = self._think
        given = self.job.prompt.opens_in is Channel.REASONING or not self.job.reasoning_apart
        marker = Marker(closing.encode(), tuple(self._tokenizer.encode(closing)))
        return ReasoningBudget(tokens, marker, None if given else opening.encode(), self._tokenizer.token_bytes)

    def begin_guide(self) -> RowGuide | None:
        """A fresh grammar for an insertion into a backend, where the reply is now; None for a free row."""
        if self._compiled is not None:
            from lattice_cli.engine.guided import RowGuide

            answers_first = self._think is not None and self.job.prompt.opens_in is Channel.ANSWER
            opening = self._think[0] if self._think and answers_first else None
            self.guide = RowGuide(
                self._compiled,
                opening,
                min_tokens=self.job.limits.min_tokens,
                end_ids=self.end_ids,
                said=self.emitted,
            )
        return self.guide

    def start(self, now_s: float) -> list[Event]:
        """The row got a slot. Said once, also when a fault makes it start over."""
        if self._started_s is not None:
            return []
        self._started_s = now_s
        return [Started(self.job.id, self.prompt_tokens, self.cached_tokens)]

    def prefilled(self, done: int, total: int, now_s: float) -> list[Event]:
        """`done` of `total` prompt tokens are read. Silent when a row starts over after its first token."""
        if done >= total and self._prefilled_s is None:
            self._prefilled_s = now_s
        return [] if self.emitted else [Prefilled(self.job.id, min(done, self.prompt_tokens), self.prompt_tokens)]

    def accept(self, token_id: int, now_s: float, score: Score | None = None) -> list[Event]:
        """One token came. The events it makes certain, the terminal one included; none of a row that has a fault."""
        if self._first_token_s is None:
            self._first_token_s = now_s
        if self.guide is not None and self.guide.error is not None:
            self.fault = EngineFault(f"the reply cannot go on: {self.guide.error}")
            return []
        if token_id in self.end_ids:
            return self.finish("stop", now_s, None if score is None else self._reply.named(token_id, score))
        self.emitted.append(token_id)
        events = self._reply.push(token_id, score)
        self._reasoning_tokens += self._reply.channel is Channel.REASONING
        if self._reply.stopped_by is not None or (self.guide is not None and self.guide.complete):
            return [*events, *self.finish("stop", now_s)]
        if self._used_up(self._reply.text):
            return [*events, *self.finish("length", now_s)]
        return events

    def finish(self, reason: FinishReason, now_s: float, end: TokenScore | None = None) -> list[Event]:
        """End the reply: release what was held back, then the one terminal event. `end` is the end token's score."""
        self._leave()
        stopped_by = self._reply.stopped_by
        events = self._reply.flush() if stopped_by is None and reason != "cancelled" else []
        if reason == "stop" and self._reply.called:  # of a stop text after a call, too: clients drop the call otherwise
            reason = "tool_calls"
        return [*events, Finished(self.job.id, reason, self._usage(), self._timing(now_s), stopped_by, end)]

    def _leave(self) -> None:
        self.ended = True
        if self.choices is not None:
            self.choices.waiting.discard(self.job.id)

    def fail(self, error: LatticeError) -> list[Event]:
        """End the reply with a fault; what was sent stays valid."""
        self._leave()
        return [Failed(self.job.id, error)]

    def _used_up(self, text: str) -> bool:
        """Whether the newest token, whose text this is, was the last one allowed."""
        limits, emitted = self.job.limits, len(self.emitted)
        if limits.answer_tokens is not None and self._closed_at is None:
            self._closing.push(text)
            self._closed_at = emitted if self._closing.matched else None
        answered = 0 if self._closed_at is None else emitted - self._closed_at
        window_used = self._closed_at is not None and answered >= (limits.answer_tokens or 0)
        return emitted >= limits.max_tokens or window_used

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=len(self.emitted),
            cached_tokens=self.cached_tokens,
            reasoning_tokens=self._reasoning_tokens,
        )

    def _timing(self, now_s: float) -> Timing:
        submitted_s = self.job.submitted_s
        started_s = now_s if self._started_s is None else self._started_s
        prefilled_s = now_s if self._prefilled_s is None else self._prefilled_s
        first_s = now_s if self._first_token_s is None else self._first_token_s
        return Timing(
            queued_s=max(0.0, started_s - submitted_s),
            prefill_s=max(0.0, prefilled_s - started_s),
            first_token_s=max(0.0, first_s - submitted_s),
            decode_s=max(0.0, now_s - first_s),
        )
