"""The conversation of one chat: what was said so far, and what the next prompt is made of.

Knows turns; knows no engine, no screen and no keyboard. Every change makes a new value: a question that
was never answered leaves no trace, because the session that held it is dropped.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lattice_cli.conversation import Turn, said


@dataclass(frozen=True, slots=True)
class Session:
    """A system prompt and the turns after it: question, answer, question, answer."""

    system: str | None = None
    turns: tuple[Turn, ...] = ()

    @property
    def conversation(self) -> tuple[Turn, ...]:
        """What a template renders."""
        return (said("system", self.system), *self.turns) if self.system else self.turns

    @property
    def questions(self) -> int:
        """How many messages of the user it holds."""
        return sum(turn.role == "user" for turn in self.turns)

    def asked(self, text: str) -> Session:
        """With one more message of the user."""
        return replace(self, turns=(*self.turns, said("user", text)))

    def answered(self, text: str) -> Session:
        """With the model's answer, whole or partial. Thoughts are not kept: templates leave them out too."""
        return replace(self, turns=(*self.turns, said("assistant", text)))

    def told(self, system: str | None) -> Session:
        """With another system prompt, or none; the turns stay."""
        return replace(self, system=system)

    def reset(self) -> Session:
        """Without its turns; the system prompt stays."""
        return replace(self, turns=())
