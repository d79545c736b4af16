"""One generation asked for: the values that go into the engine. Frozen, so any thread may hold them.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum


class Channel(Enum):
    """Which stream of a reply a text belongs to."""

    ANSWER = "answer"
    REASONING = "reasoning"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation.

    `ids` are token ids; `text` is what they encode; `cuts` are the places in `ids` where a turn begins; `opens_in` is
    the channel the reply begins in (a template may open the thinking block itself); `asked` is the joined text of the
    last user turn, which a scripted model matches on.
    """

    ids: tuple[int, ...]
    text: str
    opens_in: Channel = Channel.ANSWER
    asked: str = ""
    cuts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a reply's text must be: a grammar that every token is checked against.

    `kind` is the grammar's language: "json_schema" (`text` is the schema as JSON; "{}" is any object), "regex",
    "lark", or "choice" (`text` is a JSON array of strings). `opens_after` is the text that must have come before
    the grammar counts (a closing thinking marker); empty: at once.
    """

    kind: str
    text: str
    opens_after: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call. `parameters` is its JSON schema, as JSON."""

    name: str
    description: str = ""
    parameters: str = "{}"


@dataclass(frozen=True, slots=True)
class ToolSpeech:
    """How a reply spells calls of `tools`: `dialect` names the parser (engine/calls.py), e.g. "json", "qwen3_coder"."""

    dialect: str
    tools: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """Sampling values somebody chose; None where nothing was said. See `resolve_sampling`."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn, in the order penalties, temperature, top-k, min-p, top-p, draw.

    `temperature` 0 is greedy, ties to the lowest id; `top_k` 0 keeps all; `top_p` 1 keeps all;
    `repetition_penalty` (1 is none) counts each distinct id of prompt and reply once;
    `presence_penalty` and `frequency_penalty` (0 is none) count the reply; `seed` None is random; `logit_bias` are
    (id, what is added to its logit), after the penalties.
    """

    temperature: float = 0.7
    top_k: int = 50
    top_p: float = 0.9
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()


def resolve_sampling(*choices: SamplingChoice, floor: Sampling | None = None) -> Sampling:
    """The first choice that names a value wins; `floor` (default `Sampling()`) fills the rest.

    The doors pass: the request, flags and environment values actually given, the model's
    generation_config. None of them alone decides the others.
    """
    base = floor or Sampling()
    values = {}
    for field in fields(Sampling):
        named = (getattr(choice, field.name) for choice in choices)
        first = next((value for value in named if value is not None), None)
        values[field.name] = getattr(base, field.name) if first is None else first
    return Sampling(**values)


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a reply: `max_tokens` bounds everything generated; `stop` are texts never sent.

    `reasoning_tokens`: after so many tokens of the reply an open thought is closed by force.
    `answer_tokens`: from the closing marker on, at most so many more. `stop_ids` end a reply as its end tokens do;
    with `ignore_end` end tokens are tokens like any other, and before `min_tokens` no end token can be drawn.
    `keep_stop`: the stop text that ended the answer is part of it. `deadline_s` is the reading of `time.monotonic` at
    which the job ends, wherever it is.
    """

    max_tokens: int
    stop: tuple[str, ...] = ()
    reasoning_tokens: int | None = None
    answer_tokens: int | None = None
    stop_ids: frozenset[int] = frozenset()
    ignore_end: bool = False
    min_tokens: int = 0
    keep_stop: bool = False
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One reply to make. `n` choices of a request are n jobs with one prompt.

    `logprobs` asks for the log-probability of every token and of so many likeliest ones (0 to 20) beside it; None
    for none. `constraint` bounds the answer's text; `speech` says how calls of tools are spelled in it.

    `submitted_s` is a reading of `time.monotonic`; `id` is unique within the process. With
    `reasoning_apart` thoughts have a channel of their own; without, they stay in the answer with their
    markers, and a thinking budget holds whether or not a thought was opened.
    """

    id: str
    prompt: Prompt
    sampling: Sampling
    limits: Limits
    choice: int = 0
    reasoning_apart: bool = True
    submitted_s: float = 0.0
    logprobs: int | None = None
    constraint: Constraint | None = None
    speech: ToolSpeech | None = None


@dataclass(frozen=True, slots=True)
class ScoreJob:
    """A prompt to read for the log-probabilities of its tokens, and of the `top` likeliest (0 to 20) in each place.
    `deadline_s` as in Limits.
    """

    id: str
    ids: tuple[int, ...]
    top: int = 0
    deadline_s: float | None = None
