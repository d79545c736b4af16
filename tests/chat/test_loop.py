"""When the loop ends: Ctrl-C once and twice, at the prompt and between two.

Thread: any
"""

from __future__ import annotations

from typing import Any

import pytest

from lattice_cli.chat.exchange import Interrupts
from lattice_cli.chat.loop import TWICE_S, Repl
from lattice_cli.chat.session import Session
from lattice_cli.chat.typed import Typed

pytestmark = pytest.mark.pure


class Stub:
    """Stands for talk, exchange and screen; does nothing."""

    session = Session()

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **more: f"{name} done"


class Scripted:
    """A line that plays: a text, an exception, or a number of seconds to wait before the next; it may run out."""

    def __init__(self, *steps: Any) -> None:
        self.steps, self.now_s, self.interrupts, self.reads = list(steps), 0.0, Interrupts(), 0

    def read(self, draft: str = "") -> Typed:
        self.reads += 1
        while self.steps:
            match self.steps.pop(0):
                case str() as text:
                    return Typed(text)
                case float() as seconds:
                    self.now_s += seconds
                case error:
                    raise error
        raise AssertionError("the loop went on")

    def ahead(self) -> str:
        return ""

    def offer(self, words: object) -> None: ...
    def discard(self) -> None: ...


def run(line: Scripted) -> Scripted:
    stub = Stub()
    Repl(stub, stub, line, line.interrupts, stub, lambda: line.now_s).run()  # type: ignore[arg-type]
    return line


C = KeyboardInterrupt


@pytest.mark.parametrize("steps", [(EOFError,), ("/exit",), ("quit",), ("", "/bye"), (C, C), (C, 1.0, C)])
def test_the_loop_ends(steps: tuple[Any, ...]) -> None:
    """Reports 124 and 125."""
    assert not run(Scripted(*steps)).steps


@pytest.mark.parametrize("steps", [(C, TWICE_S + 1.0, C, EOFError), (C, "/help", C, EOFError)])
def test_two_presses_far_apart_do_not_end_it(steps: tuple[Any, ...]) -> None:
    """Report 124."""
    assert not run(Scripted(*steps)).steps


def test_a_press_between_two_prompts_counts_as_one_at_the_prompt() -> None:
    """Report 124. The terminal's line is not there for a moment, and then a key is a signal."""
    line = Scripted("/help", EOFError)
    line.interrupts.count = 1
    assert run(line).reads == 2
    line = Scripted(C)
    line.interrupts.count = 1
    assert run(line).reads == 1
