"""The state of one running job; the only mutable thing that travels through the engine.

Knows tokens and text; knows no tensors and no queue.

Thread: worker
"""

from __future__ import annotations

from lattice_cli.engine.reasoning import Marker, ReasoningBudget
from lattice_cli.engine.text import ChannelSplitter, Detokenizer, StopScanner
from lattice_cli.errors import LatticeError
from lattice_cli.events import Event, Failed, Finished, FinishReason, Piece, Prefilled, Started, Timing, Usage
from lattice_cli.job import Channel, Job
from lattice_cli.model.card import ModelCard
from lattice_cli.prompt.markers import markers_of


class Row:
    """One job in the engine: what was emitted, what text is certain, and how it ended.

    `emitted` are the token ids delivered so far, so `prompt.ids + emitted` rebuilds the row's cache.
    `fault` is set by whoever finds that this row, and no other, cannot go on.
    """

    def __init__(self, job: Job, card: ModelCard) -> None:
        self.job = job
        self.emitted: list[int] = []
        self.fault: LatticeError | None = None
        self.ended = False
        self._tokenizer = card.tokenizer
        self._think = markers_of(card).think
        self._end_ids = card.end_ids
        self._detokenizer = Detokenizer(card.tokenizer.token_bytes)
        self._splitter = ChannelSplitter(self._think if job.reasoning_apart else None, job.prompt.opens_in)
        self._stops = StopScanner(job.limits.stop)
        self._channel = job.prompt.opens_in if job.reasoning_apart else Channel.ANSWER
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
        if tokens is None or self._think is None:
            return None
        opening, closing = self._think
        given = self.job.prompt.opens_in is Channel.REASONING or not self.job.reasoning_apart
        marker = Marker(closing.encode(), tuple(self._tokenizer.encode(closing)))
        return ReasoningBudget(tokens, marker, None if given else opening.encode(), self._tokenizer.token_bytes)

    def start(self, now_s: float) -> list[Event]:
        """The row got a slot. Said once, also when a fault makes it start over."""
        if self._started_s is not None:
            return []
        self._started_s = now_s
        return [Started(self.job.id, self.prompt_tokens)]

    def prefilled(self, done: int, total: int, now_s: float) -> list[Event]:
        """`done` of `total` prompt tokens are read. Silent when a row starts over after its first token."""
        if done >= total and self._prefilled_s is None:
            self._prefilled_s = now_s
        return [] if self.emitted else [Prefilled(self.job.id, min(done, self.prompt_tokens), self.prompt_tokens)]

    def accept(self, token_id: int, now_s: float) -> list[Event]:
        """One token came. The events it makes certain, the terminal one included."""
        if self._first_token_s is None:
            self._first_token_s = now_s
        if token_id in self._end_ids:
            return self.finish("stop", now_s)
        self.emitted.append(token_id)
        text = self._detokenizer.push(token_id)
        segments = self._splitter.push(text)
        if segments:
            self._channel = segments[-1][0]
        self._reasoning_tokens += self._channel is Channel.REASONING
        events = self._pieces(segments)
        if self._stops.matched is not None:
            return [*events, *self.finish("stop", now_s)]
        if self._used_up(text):
            return [*events, *self.finish("length", now_s)]
        return events

    def finish(self, reason: FinishReason, now_s: float) -> list[Event]:
        """End the reply: release what was held back, then the one terminal event."""
        self.ended = True
        events: list[Event] = []
        if self._stops.matched is None and reason != "cancelled":
            events = self._pieces([*self._splitter.push(self._detokenizer.flush()), *self._splitter.flush()])
            if rest := self._stops.flush():
                events.append(Piece(self.job.id, Channel.ANSWER, rest))
        return [*events, Finished(self.job.id, reason, self._usage(), self._timing(now_s), self._stops.matched)]

    def fail(self, error: LatticeError) -> list[Event]:
        """End the reply with a fault; what was sent stays valid."""
        self.ended = True
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

    def _pieces(self, segments: list[tuple[Channel, str]]) -> list[Event]:
        pieces: list[Event] = []
        for channel, text in segments:
            certain = self._stops.push(text) if channel is Channel.ANSWER else text
            if certain:
                pieces.append(Piece(self.job.id, channel, certain))
        return pieces

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=len(self.emitted),
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
