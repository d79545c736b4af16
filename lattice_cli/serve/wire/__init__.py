"""How requests and answers are spelled: a `Wire` for each family of manners, with its dialects by path. Knows no web
framework and no loop over events.

A dialect reads a body into an `Ask` and, for each answer, makes a `Voice` that spells events as frames.

Thread: any
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from lattice_cli.conversation import Turn
from lattice_cli.errors import LatticeError
from lattice_cli.events import CallPart, Finished, Piece, TokenScore
from lattice_cli.job import SamplingChoice
from lattice_cli.prompt.template import DEFAULT as DEFAULT_RENDERING
from lattice_cli.prompt.template import RenderOptions
from lattice_cli.serve.wire.ending import NO_ENDING, Ending
from lattice_cli.serve.wire.formats import Bound
from lattice_cli.serve.wire.tools import ToolAsk

if TYPE_CHECKING:
    from lattice_cli.engine.completion import Completion


class Echo(NamedTuple):
    """A prompt that is sent back: its text, and where they were asked for, its tokens. The first of them has no
    log-probability and is given by its bytes.
    """

    text: str
    scores: tuple[TokenScore | bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """What a body means, before a template has seen it: `turns` of a chat, or else `prompts`, which are texts or ids.

    `model` None is the served one; `max_tokens` None is what fits, or `usual_max_tokens` where the server names no
    limit either; `reasoning_budget` None is the server's; `choices` replies are made of one prompt; `logprobs` is how
    many likeliest tokens are told beside each, None for no log-probabilities; `rendering` and `tools` are of a chat;
    `bound` is what the text must be; with `opening` a text begins with what
    the tokenizer puts before it; with `echo` prompts are sent back; `ignored` are the names of fields that nobody
    knows, whatever is in them.
    """

    turns: tuple[Turn, ...] = ()
    prompts: tuple[str | tuple[int, ...], ...] = ()
    model: str | None = None
    sampling: SamplingChoice = SamplingChoice()
    max_tokens: int | None = None
    reasoning_budget: int | None = None
    ending: Ending = NO_ENDING
    choices: int = 1
    logprobs: int | None = None
    rendering: RenderOptions = DEFAULT_RENDERING
    tools: ToolAsk | None = None
    bound: Bound | None = None
    stream: bool = False
    include_usage: bool = False
    usual_max_tokens: int | None = None
    opening: bool = True
    echo: bool = False
    ignored: tuple[str, ...] = ()


class Frame(NamedTuple):
    """One event of a stream: its data on one line of ASCII, and its name where the dialect has names."""

    data: bytes
    event: str | None = None


class Page(NamedTuple):
    """An answer in one piece that needs no engine."""

    status: int
    media_type: str
    body: bytes


class Voice(Protocol):
    """One answer being told; `choice` is the index of a reply within it."""

    def begin(self) -> Sequence[Frame]:
        """The stream is under way, whether or not a reply has begun."""

    def open(self, choice: int) -> Sequence[Frame]:
        """The reply has begun."""

    def chunk(self, choice: int, piece: Piece) -> Sequence[Frame]:
        """Text came."""

    def call(self, choice: int, part: CallPart) -> Sequence[Frame]:
        """A part of a tool call came."""

    def close(self, choice: int, finished: Finished) -> Sequence[Frame]:
        """The reply ended as it should."""

    def end(self, finished: Sequence[Finished]) -> Sequence[Frame]:
        """Every reply ended as it should."""

    def fault(self, error: LatticeError) -> Sequence[Frame]:
        """The answer ends here with an error; nothing follows."""

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The answer in one body; all completions are finished."""


class Dialect(Protocol):
    """One spelling of the same requests and answers."""

    def parse(self, body: bytes) -> Ask:
        """Read and check a body. Raises: BadRequest with the place of the fault."""

    def voice(self, ask: Ask, model: str, echoes: Sequence[Echo] = ()) -> Voice:
        """A new answer, with an id of its own, from the model of that name; `echoes` are of the prompts in order."""


class Wire(Protocol):
    """All that is spelled in one way under one policy."""

    def dialects(self) -> Mapping[str, Dialect]:
        """Path -> dialect: the whole of what POST serves."""

    def check_head(self, media_type: str | None, encoding: str | None, length: int | None) -> None:
        """Whether a body sent so is read at all. Raises: LatticeError."""

    def too_large(self, max_bytes: int) -> LatticeError:
        """What is said of a body over the limit."""

    def refusal(self, error: LatticeError) -> Page:
        """Any failure, on any path."""

    def health(self, state: str, *, ready: bool) -> Page:
        """Whether a request would be answered; `state` is a word for it."""

    def root(self, endpoints: Sequence[str]) -> Page:
        """What this is."""

    def models(self, names: Sequence[str], started_s: int) -> Page:
        """The list of the one model that is served since `started_s` (Unix time), under its name and its aliases."""


def wire_named(name: str) -> Wire:
    """The wire of a policy; see `Policy.wire`."""
    from lattice_cli.serve.wire.lattice_050 import Lattice050
    from lattice_cli.serve.wire.lattice_061 import Lattice061
    from lattice_cli.serve.wire.openai import OpenAi

    wires: dict[str, type[Wire]] = {"openai": OpenAi, "lattice-0.6.1": Lattice061, "lattice-0.5.0": Lattice050}
    return wires[name]()
