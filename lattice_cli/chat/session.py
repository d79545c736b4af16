"""The conversation of one chat: what was said so far, and what the next prompt is made of.

Knows turns; knows no engine, no screen and no keyboard. Every change makes a new value: a question that
was never answered leaves no trace, because the session that held it is dropped.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lattice_cli.conversation import TextPart, Turn, said

SUMMARY_ASKED = (
    "Sum up our conversation so far in a few sentences: what I asked for, what was found or decided, every name and "
    "number that still matters. Write the summary alone."
)


@dataclass(frozen=True, slots=True)
class Session:
    """A system prompt and the turns after it: question, answer, question, answer.

    The first `forgotten` turns are kept for people and left out of prompts; `summary` is what the model is told of
    them. An answer's turn keeps its thoughts, for exports and for going on with it; prompts leave them out, as
    templates do.
    """

    system: str | None = None
    turns: tuple[Turn, ...] = ()
    forgotten: int = 0
    summary: str | None = None

    @property
    def conversation(self) -> tuple[Turn, ...]:
        """What a template renders."""
        head = (said("system", self.system),) if self.system else ()
        summed = (said("user", SUMMARY_ASKED), said("assistant", self.summary)) if self.summary else ()
        return (*head, *summed, *(_thoughtless(turn) for turn in self.turns[self.forgotten :]))

    @property
    def open_conversation(self) -> tuple[Turn, ...]:
        """The same, to go on with the last answer: its thoughts stay."""
        return (*self.conversation[:-1], *self.turns[-1:])

    @property
    def questions(self) -> int:
        """How many messages of the user it holds."""
        return sum(turn.role == "user" for turn in self.turns)

    @property
    def last_question(self) -> str | None:
        """The last message of the user."""
        return next((turn.text for turn in reversed(self.turns) if turn.role == "user"), None)

    @property
    def last_answer(self) -> Turn | None:
        """The answer that the conversation ends with."""
        return self.turns[-1] if self.turns and self.turns[-1].role == "assistant" else None

    def asked(self, text: str) -> Session:
        """With one more message of the user."""
        return replace(self, turns=(*self.turns, said("user", text)))

    def answered(self, text: str, reasoning: str | None = None) -> Session:
        """With the model's answer, whole or partial."""
        parts = (TextPart(text),) if text else ()
        return replace(self, turns=(*self.turns, Turn("assistant", parts, reasoning=reasoning or None)))

    def told(self, system: str | None) -> Session:
        """With another system prompt, or none; the turns stay."""
        return replace(self, system=system)

    def reset(self) -> Session:
        """Without its turns; the system prompt stays."""
        return Session(self.system)

    def before_last_question(self) -> Session:
        """Without the last message of the user and what came after it."""
        at = max((at for at, turn in enumerate(self.turns) if turn.role == "user"), default=0)
        return replace(self, turns=self.turns[:at], forgotten=min(self.forgotten, at))

    def before_last_answer(self) -> Session:
        """Without the answer it ends with."""
        return replace(self, turns=self.turns[:-1]) if self.last_answer else self

    def without_oldest(self) -> Session | None:
        """Its oldest message and the answer left out of prompts, at last the summary of older ones; None where there
        is nothing but the last message.
        """
        later = [at for at, turn in enumerate(self.turns) if turn.role == "user" and at > self.forgotten]
        if later:
            return replace(self, forgotten=later[0])
        return replace(self, summary=None) if self.summary else None

    def summed_up(self, summary: str, turns: int) -> Session:
        """Its first `turns` turns left out of prompts, in which `summary` stands for them."""
        return replace(self, forgotten=turns, summary=summary)


def _thoughtless(turn: Turn) -> Turn:
    return turn if turn.reasoning is None else replace(turn, reasoning=None)
