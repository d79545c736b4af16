"""Which system's manners a server follows. One value decides; no handler asks for a version.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MEBIBYTE = 1 << 20


class Room(Enum):
    """What happens when prompt, thoughts and answer are more than the context window."""

    FITS = "an explicit max_tokens must fit, an absent one is what fits"
    WHOLE = "max_tokens and budget are cut to the window alone, then all of it must fit together with the prompt"
    CLAMPED = "max_tokens and budget are cut to what fits; only a prompt that leaves no room is refused"


class Commit(Enum):
    """When a stream's status is 200."""

    SOON = "at the engine's first event, or after a while without one"
    FIRST_TOKEN = "at the first text or the end, however long that takes"
    AT_ONCE = "before anything is known"


@dataclass(frozen=True, slots=True)
class Policy:
    """`model_defaults`: the model's generation_config fills what neither request nor flag named.
    `repetition_penalty` and `max_tokens` (None is what fits): the built-in values when nobody named one.

    `wire` names how requests and answers are spelled: see serve/wire. `bare_chatml` renders with that template
    instead of the model's own; without `reasoning_apart` thoughts stay in the answer; `any_model` takes every
    model name and says it back; `model_pages` has one for each model; `token_routes` has
    /tokenize and /detokenize; `failed_tokens` are told of a failed stream.
    """

    name: str
    model_defaults: bool
    repetition_penalty: float
    max_tokens: int | None = None
    wire: str = "openai"
    max_body_bytes: int = 16 * MEBIBYTE
    bare_chatml: bool = False
    reasoning_apart: bool = True
    any_model: bool = False
    model_pages: bool = True
    token_routes: bool = True
    room: Room = Room.FITS
    commit: Commit = Commit.SOON
    failed_tokens: int | None = None


OPENAI = Policy("openai", model_defaults=True, repetition_penalty=1.0)

LATTICE_061 = Policy(
    "lattice-0.6.1",
    model_defaults=False,
    repetition_penalty=1.1,
    max_tokens=512,
    wire="lattice-0.6.1",
    max_body_bytes=1 * MEBIBYTE,
    bare_chatml=True,
    reasoning_apart=False,
    any_model=True,
    model_pages=False,
    token_routes=False,
    room=Room.WHOLE,
    commit=Commit.FIRST_TOKEN,
    failed_tokens=0,
)

LATTICE_050 = Policy(
    "lattice-0.5.0",
    model_defaults=False,
    repetition_penalty=1.1,
    max_tokens=512,
    wire="lattice-0.5.0",
    max_body_bytes=2 * MEBIBYTE,
    bare_chatml=True,
    reasoning_apart=False,
    any_model=True,
    model_pages=False,
    token_routes=False,
    room=Room.CLAMPED,
    commit=Commit.AT_ONCE,
    failed_tokens=0,
)

POLICIES = {policy.name: policy for policy in (OPENAI, LATTICE_061, LATTICE_050)}
