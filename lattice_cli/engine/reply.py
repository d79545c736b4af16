"""A reply's text as it comes: tokens through the text stages into pieces, calls and scores.

    token -> Detokenizer -> ChannelSplitter -> calls -> StopScanner -> Piece      (the last two: answer only)

Knows tokens, text and events; knows no limits and no clock.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lattice_cli.engine.calls import CallParser, Part
from lattice_cli.engine.text import ChannelSplitter, Detokenizer, StopScanner
from lattice_cli.engine.trail import ScoreTrail, Span, Trail
from lattice_cli.events import CallPart, Event, Piece, TokenScore
from lattice_cli.job import Channel, Job
from lattice_cli.model.card import Tokenizer

Score = tuple[float, tuple[tuple[int, float], ...]]  # a token's log-probability, and (id, log-probability), best first


class Reply:
    """Of one row. `text` is what the newest token said, `called` whether a tool call was made."""

    def __init__(
        self, job: Job, tokenizer: Tokenizer, think: tuple[str, str] | None, calls: CallParser | None = None
    ) -> None:
        self._job_id = job.id
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer.token_bytes)
        self._splitter = ChannelSplitter(think if job.reasoning_apart else None, job.prompt.opens_in)
        self._calls = calls
        self._stops = StopScanner(job.limits.stop, keep=job.limits.keep_stop)
        self._scores = ScoreTrail() if job.logprobs is not None else None
        self._letters = 0  # of the whole text so far
        self._uncalled = ""  # what the call stage holds, or has made into calls
        self._in_calls, self._in_stops = Trail(), Trail()
        self.channel = job.prompt.opens_in if job.reasoning_apart else Channel.ANSWER
        self.text = ""
        self.called = self._in_call = False

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._stops.matched

    def push(self, token_id: int, score: Score | None = None) -> list[Event]:
        """One token came; the events it makes certain."""
        self.text = self._detokenizer.push(token_id)
        if self._scores is not None and score is not None:
            self._keep(self._scores, token_id, score)
        self._letters += len(self.text)
        segments = self._splitter.push(self.text)
        if segments:
            self.channel = segments[-1][0]
        return self._events(segments)

    def flush(self) -> list[Event]:
        """What was held back, at the end of a reply that no stop string ended."""
        events = self._events(self._splitter.push(self._detokenizer.flush()))
        events += self._events(self._splitter.flush())
        if self._calls is not None:
            events += self._from_calls(self._calls.flush())
        if rest := self._stops.flush():
            events.append(self._piece(Channel.ANSWER, rest, self._in_stops.take(len(rest))))
        return events

    def named(self, token_id: int, score: Score) -> TokenScore:
        """A token's score with the bytes of all that it names."""
        spelled = self._tokenizer.token_bytes
        return TokenScore(
            token_id, spelled(token_id), score[0], tuple((spelled(one), value) for one, value in score[1])
        )

    def _keep(self, trail: ScoreTrail, token_id: int, score: Score) -> None:
        named = self.named(token_id, score)
        end = self._letters + len(self.text) + (1 if self._detokenizer.unfinished else 0)
        trail.push((self._letters, end if named.data else self._letters), named)

    def _events(self, segments: Sequence[tuple[Channel, str]]) -> list[Event]:
        events: list[Event] = []
        for (channel, text), begin in zip(segments, self._splitter.begins, strict=True):
            spans = [(begin, begin + len(text))]
            if channel is Channel.REASONING:
                events.append(self._piece(channel, text, spans))
            elif self._calls is None:
                events += self._through_stops(text, spans)
            else:
                self._uncalled += text
                self._in_calls.push(spans)
                events += self._from_calls(self._calls.push(text))
        return events

    def _from_calls(self, parts: Iterable[Part]) -> list[Event]:
        events: list[Event] = []
        content = ""
        for part in parts:
            if isinstance(part, str):
                content += part
                continue
            events += self._content(content)
            content, self.called, self._in_call = "", True, True
            events.append(CallPart(self._job_id, part.index, part.name, part.arguments))
        return events + self._content(content)

    def _content(self, text: str) -> list[Event]:
        if not text:
            return []
        # After a call its own text lies before this one, and may hold the same letters.
        begin = max(0, self._uncalled.rfind(text) if self._in_call else self._uncalled.find(text))
        self._uncalled, self._in_call = self._uncalled[begin + len(text) :], False
        self._in_calls.take(begin)
        return self._through_stops(text, self._in_calls.take(len(text)))

    def _through_stops(self, text: str, spans: list[Span]) -> list[Event]:
        self._in_stops.push(spans)
        certain = self._stops.push(text)
        return [self._piece(Channel.ANSWER, certain, self._in_stops.take(len(certain)))] if certain else []

    def _piece(self, channel: Channel, text: str, spans: list[Span]) -> Piece:
        return Piece(self._job_id, channel, text, self._scores.take(spans) if self._scores is not None else ())
