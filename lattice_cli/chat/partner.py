"""Who answers in a chat: the engine of this process or a server elsewhere, both asked and heard in one way.

Knows questions and tickets; knows no terminal. Whoever is asked, the same events come back, so that there is one
loop over them (exchange.py).

Thread: any
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from lattice_cli.chat.manner import Manner
from lattice_cli.conversation import Turn
from lattice_cli.engine.worker import Ticket
from lattice_cli.job import Sampling, SamplingChoice

Thinking = Literal["show", "hide", "off"]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: the conversation, how the answer is drawn, and what ends it.

    `continues`: the last turn is an assistant's, and the answer goes on with it. `thinks` False: without thoughts.
    `schema` is a JSON schema, as JSON, that the answer must follow.
    """

    turns: tuple[Turn, ...]
    manner: Manner
    continues: bool = False
    thinks: bool = True
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """How many tokens a conversation has. `exact` False: an estimate."""

    tokens: int
    exact: bool = True


class Partner(Protocol):
    """A model that answers. One answer at a time."""

    @property
    def name(self) -> str:
        """The model's."""

    @property
    def context_tokens(self) -> int | None:
        """The window; None where a server does not tell."""

    @property
    def advice(self) -> SamplingChoice:
        """The sampling that the model recommends."""

    @property
    def floor(self) -> Sampling | None:
        """The sampling where neither a person nor the model says anything; None where a server decides."""

    def count(self, question: Question) -> Count:
        """The tokens of the prompt that `question` makes. Raises: BadRequest (a template's refusal)."""

    def ask(self, question: Question, max_tokens: int | None) -> Ticket:
        """Begin an answer of at most `max_tokens` (None: as many as fit); its events are on the ticket, and its
        `cancel` ends it. Returns at once.

        Raises: BadRequest, EngineUnavailable.
        """

    def models(self) -> Sequence[str]:
        """The names that `/model` can take here, the present one too."""

    def switched(self, name: str) -> Partner:
        """Another model instead of this one, which ends; where that fails this one stays. Blocks, for seconds.

        Raises: LatticeError.
        """

    def close(self, timeout_s: float) -> bool:
        """End it. False when it did not end in time."""
