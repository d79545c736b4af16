"""A fold of one job's events: what an answer that is not streamed is rendered from.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lattice_cli.events import CallPart, Event, Failed, Finished, Piece, TokenScore
from lattice_cli.job import Channel


@dataclass(slots=True)
class Call:
    """A tool call as far as it has come; `arguments` are fragments of its JSON."""

    name: str
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Completion:
    """Owned by whoever folds it. `finished` or `failed` is set by the terminal event; `calls` are by their index."""

    job_id: str
    finished: Finished | None = None
    failed: Failed | None = None
    calls: dict[int, Call] = field(default_factory=dict)
    _texts: dict[Channel, list[str]] = field(default_factory=lambda: {channel: [] for channel in Channel})
    _scores: dict[Channel, list[TokenScore]] = field(default_factory=lambda: {channel: [] for channel in Channel})

    def add(self, event: Event) -> None:
        """Take one event in; events of other jobs are the caller's mistake."""
        assert event.job_id == self.job_id
        match event:
            case Piece():
                self._texts[event.channel].append(event.text)
                self._scores[event.channel].extend(event.scores)
            case CallPart():
                self.calls.setdefault(event.index, Call(event.name or "")).arguments.append(event.arguments)
            case Finished():
                self.finished = event
            case Failed():
                self.failed = event
            case _:
                pass

    @property
    def answer(self) -> str:
        return "".join(self._texts[Channel.ANSWER])

    @property
    def reasoning(self) -> str:
        return "".join(self._texts[Channel.REASONING])

    def scores(self, channel: Channel) -> list[TokenScore]:
        """Of a channel's tokens, in order; empty where none were asked for."""
        return self._scores[channel]
