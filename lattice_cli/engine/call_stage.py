"""What all parsers of tool calls share: prose that goes on its way, and markers that may begin a call.

A parser is a text stage behind the ChannelSplitter. It gives text that stays content and parts of calls, in order.
What it cannot read as a call comes back as content, marker and all, so prose that mentions a marker stays prose.
White space between a call and its neighbours belongs to the call, unless an answer was begun before it.
Invariant: the joined output never depends on how the input was split.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lattice_cli.engine.text import held_suffix


@dataclass(frozen=True, slots=True)
class CallFragment:
    """A part of call number `index`: its `name` comes first, then fragments of the arguments' JSON text."""

    index: int
    name: str | None
    arguments: str


Part = str | CallFragment


class CallStage:
    """Finds `openings` and hands over to `_begin`, which a dialect defines.

    A state is a method that looks at `_held` and gives parts; it says by its result whether it got on, and sets
    `_state` for what comes next.
    """

    openings: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._held = ""
        self._final = False
        self._said = False  # some content went out
        self._lead = ""  # white space before what may be a call
        self._called = 0  # calls begun
        self._after_call = False  # nothing but white space came since a call
        self._state: Callable[[], bool] = self._prose
        self._parts: list[Part] = []

    def push(self, text: str) -> list[Part]:
        """The parts that `text` makes certain."""
        self._held += text
        return self._run()

    def flush(self) -> list[Part]:
        """What was held back, at the end of a reply. A call that was cut stays cut: its JSON is not closed. Behind a
        call a piece of a marker, or of a next call that has no name yet, is nobody's text.
        """
        self._final = True
        return self._run()

    def _run(self) -> list[Part]:
        while self._state():
            pass
        parts, self._parts = self._parts, []
        return parts

    # For dialects.

    def _begin(self) -> bool:
        """`_held` begins with an opening: give the call's name and set the next state, wait, or `_refuse`."""
        raise NotImplementedError

    def _call(self, name: str) -> None:
        """A call is certain."""
        self._parts.append(CallFragment(self._called, name, ""))
        self._called += 1
        self._lead = ""

    def _say_arguments(self, text: str) -> None:
        if text:
            self._parts.append(CallFragment(self._called - 1, None, text))

    def _refuse(self, length: int) -> bool:
        """The first `length` characters, which looked like a call's beginning, are prose."""
        if self._cut_off():
            self._lead = self._held = ""
        self._say(self._lead + self._held[:length])
        self._held, self._lead = self._held[length:], ""
        self._state = self._prose
        return True

    def _done(self) -> bool:
        """A call is over."""
        self._after_call = True
        self._state = self._prose
        return True

    # Prose.

    def _prose(self) -> bool:
        found = min(((self._held.find(one), one) for one in self.openings if one in self._held), default=None)
        if found is not None:
            at = found[0]
            before = self._held[:at]
            if before.strip() or (self._said and not self._after_call):
                self._say(before)
            else:
                self._lead = before
            self._held = self._held[at:]
            self._state = self._begin
            return True
        if self._cut_off():
            self._held = ""
        keep = 0 if self._final else held_suffix(self._held, self.openings)
        certain = self._held[: len(self._held) - keep]
        if (self._after_call or not self._said) and not certain.strip() and not (self._final and not self._called):
            if self._final:
                self._held = ""
            return False  # white space before the first word, or behind a call
        self._held = self._held[len(certain) :]
        self._say(certain)
        return False

    def _cut_off(self) -> bool:
        """Whether what is held at the end of the reply was going to be a marker behind a call."""
        return self._final and self._after_call

    def _say(self, text: str) -> None:
        if self._after_call and not self._said:
            text = text.lstrip()
        if text:
            self._parts.append(text)
            self._said, self._after_call = True, False


def waits(text: str, wanted: str) -> bool:
    """Whether `text` may still become `wanted`."""
    return len(text) < len(wanted) and wanted.startswith(text)
