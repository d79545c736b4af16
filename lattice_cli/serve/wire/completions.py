"""/v1/completions: OpenAI's older request, for texts and token ids as they are. Its answer is in completions_voice.py.

Thread: any
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from lattice_cli.errors import InvalidField, UnsupportedField
from lattice_cli.serve.wire import Ask, Echo
from lattice_cli.serve.wire.body import read_object
from lattice_cli.serve.wire.completions_voice import CompletionsVoice
from lattice_cli.serve.wire.ending import ending_of
from lattice_cli.serve.wire.fields import refuse_unsupported, unknown_names
from lattice_cli.serve.wire.formats import FormatFields, bound_of
from lattice_cli.serve.wire.inside import names_inside
from lattice_cli.serve.wire.schema import (
    SharedFields,
    agreed,
    choices_of,
    max_tokens_of,
    model_of,
    sampling_of,
    usage_wanted,
)
from lattice_cli.wording import read_fields

MOST_LOGPROBS = 20
MOST_REPLIES = 128
USUAL_MAX_TOKENS = 16  # OpenAI's and vLLM's

TokenId = Annotated[int, Meta(ge=0)]


class CompletionsFields(SharedFields):
    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    best_of: Annotated[int, Meta(ge=1)] | None = None
    add_special_tokens: bool | None = None


KNOWN = frozenset((*CompletionsFields.__struct_fields__, *FormatFields.__struct_fields__))


class CompletionsDialect:
    """See `Dialect`."""

    def parse(self, body: bytes) -> Ask:
        said = read_object(body)
        refuse_unsupported(said, KNOWN)
        fields = read_fields(said, CompletionsFields)
        choices = choices_of(fields)
        if fields.best_of not in (None, 1, choices):
            raise UnsupportedField(
                "`best_of` is not supported", param="best_of", hint="leave it out, or send the same as `n`"
            )
        prompts = _prompts(fields)
        if len(prompts) * choices > MOST_REPLIES:
            raise InvalidField(f"the prompts ask for more than {MOST_REPLIES} replies", param="prompt")
        include_usage = usage_wanted(fields)
        return Ask(
            prompts=prompts,
            model=model_of(fields.model),
            sampling=sampling_of(fields),
            max_tokens=max_tokens_of(fields, least=0),
            usual_max_tokens=USUAL_MAX_TOKENS,
            reasoning_budget=agreed(fields, "reasoning_budget", "thinking_token_budget"),
            ending=ending_of(fields),
            choices=choices,
            logprobs=fields.logprobs,
            bound=bound_of(read_fields(said, FormatFields)),
            stream=bool(fields.stream),
            include_usage=include_usage,
            opening=fields.add_special_tokens is not False,
            echo=bool(fields.echo),
            ignored=unknown_names([*said, *names_inside(said)], KNOWN),
        )

    def voice(self, ask: Ask, model: str, echoes: Sequence[Echo] = ()) -> CompletionsVoice:
        return CompletionsVoice(f"cmpl-{uuid.uuid4().hex}", int(time.time()), model, ask, echoes)


def _prompts(fields: CompletionsFields) -> tuple[str | tuple[int, ...], ...]:
    """One text, several, one list of ids, or several: never a mixture."""
    match fields.prompt:
        case None:
            raise InvalidField("`prompt` is missing", param="prompt")
        case str(text):
            return (text,)
        case []:
            raise InvalidField("`prompt` must not be empty", param="prompt")
        case [int(), *_] as ids if all(type(one) is int for one in ids):
            return (tuple(ids),)  # type: ignore[arg-type]
        case [str() | list(), *_] as several if len({type(one) for one in several}) == 1:
            return tuple(one if isinstance(one, str) else tuple(one) for one in several)  # type: ignore[arg-type]
    raise InvalidField("`prompt` must be texts or lists of token ids, and not both", param="prompt")
