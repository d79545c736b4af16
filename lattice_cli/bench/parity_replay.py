"""The steps of one case against a server: send, read, leave, compare. The first step that does not hold ends it.

Thread: any
"""

from __future__ import annotations

from collections.abc import Sequence

from lattice_cli.address import Address
from lattice_cli.bench.parity_call import LIMIT_S, Answer, Call
from lattice_cli.bench.parity_case import Answered, Leave, Line, Quiet, Read, Same, Send, Step
from lattice_cli.bench.parity_check import compare, diverges
from lattice_cli.bench.parity_rule import Divergence, hold, shown
from lattice_cli.bench.parity_server import ServerProcess


class Replay:
    """Owns the calls of one case; `close` leaves all of them."""

    def __init__(self, address: Address, server: ServerProcess | None, limit_s: float = LIMIT_S) -> None:
        self._address = address
        self._server = server
        self._limit_s = limit_s
        self._calls: dict[str, Call] = {}
        self._answers: dict[str, Answer] = {}

    def run(self, steps: Sequence[Step]) -> Divergence | None:
        """Raises: NoAnswer."""
        for step in steps:
            if there := self._take(step):
                return there
        return None

    def close(self) -> None:
        for call in self._calls.values():
            call.close()

    def _take(self, step: Step) -> Divergence | None:
        match step:
            case Send():
                self._calls[step.name] = Call(self._address, step.request, self._limit_s)
            case Read():
                if not self._calls[step.of].read_until(step.until.encode()):
                    return Divergence(f"{step.of}: body", f"a text with {shown(step.until)}", "its end")
            case Quiet():
                if not self._calls[step.of].quiet(step.ms / 1000):
                    return Divergence(step.of, f"silence for {step.ms} ms", "the beginning of an answer")
            case Leave():
                self._calls[step.of].close()
            case Answered():
                answer = self._answers[step.of] = self._calls[step.of].answer()
                return self._placed(step.of, diverges(step.expect, answer))
            case Same():
                one, other = (self._answers[name] for name in step.of)
                return compare(one, other, step.at)
            case Line():
                return self._heard(step)
        return None

    def _placed(self, name: str, there: Divergence | None) -> Divergence | None:
        """With several calls the place says whose."""
        if there is None or len(self._calls) == 1:
            return there
        return Divergence(f"{name}: {there.place}", there.expected, there.got)

    def _heard(self, step: Line) -> Divergence | None:
        if self._server is None:
            return None
        line = self._server.line(lambda said: all(hold(check, said) is None for check in step.fields))
        if line is None:
            return Divergence("line", "an @@lattice line", "none")
        for check in step.fields:
            if there := hold(check, line, "line "):
                return there
        return None
