"""A fold of one job's events: what an answer that is not streamed is rendered from.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lattice_cli.events import Event, Failed, Finished, Piece
from lattice_cli.job import Channel


@dataclass(slots=True)
class Completion:
    """Owned by whoever folds it. `finished` or `failed` is set by the terminal event."""

    job_id: str
    finished: Finished | None = None
    failed: Failed | None = None
    _texts: dict[Channel, list[str]] = field(default_factory=lambda: {channel: [] for channel in Channel})

    def add(self, event: Event) -> None:
        """Take one event in; events of other jobs are the caller's mistake."""
        assert event.job_id == self.job_id
        match event:
            case Piece():
                self._texts[event.channel].append(event.text)
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
