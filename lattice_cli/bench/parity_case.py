"""A parity case as it lies in fixtures/parity: what is sent, to whom, and what must come back.

Knows the file's shape and says file and line of any fault; sends nothing. The format for people is in
docs/guides/parity.md.

Thread: any
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from lattice_cli.bench.parity_body import Raw, check_repeats
from lattice_cli.bench.parity_expect import Check, Expect
from lattice_cli.errors import BenchError


class Request(Struct, forbid_unknown_fields=True, frozen=True):
    """What is sent. `body` is JSON, in which {"repeat": [value, count]} stands for a long text or list; `raw`
    are the bytes themselves. `declared` is a Content-Length that need not be true, `chunk` sends chunks of
    that size. A header that is null is not sent.
    """

    method: str = "POST"
    path: str = "/v1/chat/completions"
    headers: dict[str, str | None] = {}
    body: Any = UNSET
    raw: Raw | UnsetType = UNSET
    declared: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.body is not UNSET:
            check_repeats(self.body)


class Send(Struct, forbid_unknown_fields=True, frozen=True, tag_field="do", tag="send"):
    """Send a request; the later steps call it `name`."""

    name: str
    request: Request


class Read(Struct, forbid_unknown_fields=True, frozen=True, tag_field="do", tag="read"):
    """Wait until the answer's body holds `until`."""

    of: str
    until: str


class Quiet(Struct, forbid_unknown_fields=True, frozen=True, tag_field="do", tag="quiet"):
    """For so long not even a status comes."""

    of: str
    ms: int


class Leave(Struct, forbid_unknown_fields=True, frozen=True, tag_field="do", tag="leave"):
    """The client closes its connection."""

    of: str


class Answered(Struct, forbid_unknown_fields=True, frozen=True, tag_field="do", tag="expect"):
    """The whole answer holds."""

    of: str
    expect: Expect


class Same(Struct, forbid_unknown_fields=True, frozen=True, tag_field="do", tag="same"):
    """Two answers that were expected before have one value at a place."""

    of: tuple[str, str]
    at: str


class Line(Struct, forbid_unknown_fields=True, frozen=True, tag_field="do", tag="line"):
    """The server says an `@@lattice` line of which all this holds."""

    fields: tuple[Check, ...]


Step = Send | Read | Quiet | Leave | Answered | Same | Line


class Case(Struct, forbid_unknown_fields=True, frozen=True):
    """One line: either `request` and `expect`, or `steps`.

    Without `policy`, `script`, `model` and `flags` it holds for any OpenAI-compatible server. `script` is a
    scripted model, `model` the name of a folder in fixtures/models. `note` says where it comes from.
    """

    name: str
    note: str = ""
    policy: str | None = None
    script: dict[str, Any] | None = None
    model: str | None = None
    flags: tuple[str, ...] = ()
    request: Request | None = None
    expect: Expect | None = None
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        if (self.request is None) != (self.expect is None) or (self.request is None) != bool(self.steps):
            raise ValueError("a case has `request` and `expect`, or `steps`")
        if self.script is not None and self.model is not None:
            raise ValueError("a case has a `script` or a `model`")
        self._check_names()

    def _check_names(self) -> None:
        """Every step speaks of calls that were sent before it."""
        known: dict[str, set[str]] = {"sent": set(), "answered": set()}
        for step in self.steps:
            if isinstance(step, Send):
                known["sent"].add(step.name)
            elif not isinstance(step, Line):
                names = step.of if isinstance(step, Same) else (step.of,)
                missing = set(names) - known["answered" if isinstance(step, Same) else "sent"]
                if missing:
                    raise ValueError(f"a step speaks of `{min(missing)}` too early")
                known["answered"] |= set(names) if isinstance(step, Answered) else set()

    @property
    def portable(self) -> bool:
        """Whether any server can be asked."""
        ours = self.policy or self.script or self.model or self.flags
        return not ours and not any(isinstance(step, Line) for step in self.steps)

    def moves(self) -> tuple[Step, ...]:
        """The case as steps."""
        if self.request is None or self.expect is None:
            return self.steps
        return (Send("it", self.request), Answered("it", self.expect))


def read_cases(path: Path) -> list[Case]:
    """All cases of a file, in its order; empty lines are passed over.

    Raises: BenchError naming file and line.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BenchError(f"the fixture `{path}` cannot be read: {error.strerror}") from error
    cases: dict[str, Case] = {}
    for number, case in _decoded(path, lines):
        if case.name in cases:
            raise BenchError(f"`{path}` line {number}: there is a case `{case.name}` already")
        cases[case.name] = case
    return list(cases.values())


def _decoded(path: Path, lines: list[bytes]) -> Iterator[tuple[int, Case]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, msgspec.json.decode(line, type=Case)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BenchError(f"`{path}` line {number}: {error}") from error
