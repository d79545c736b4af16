"""/v1/chat/completions: OpenAI's chat request. How its answer is spelled is in chat_voice.py.

Thread: any
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from lattice_cli.errors import InvalidField
from lattice_cli.serve.wire import Ask, Echo
from lattice_cli.serve.wire.body import read_object
from lattice_cli.serve.wire.chat_voice import ChatVoice
from lattice_cli.serve.wire.ending import ending_of
from lattice_cli.serve.wire.fields import refuse_unsupported, unknown_names
from lattice_cli.serve.wire.formats import FormatFields, bound_of
from lattice_cli.serve.wire.inside import names_inside
from lattice_cli.serve.wire.messages import Message, refuse_many_parts, turns_of
from lattice_cli.serve.wire.rendering import RenderFields, options_of
from lattice_cli.serve.wire.schema import (
    SharedFields,
    agreed,
    choices_of,
    max_tokens_of,
    model_of,
    sampling_of,
    usage_wanted,
)
from lattice_cli.serve.wire.tools import ToolFields, tools_of
from lattice_cli.wording import read_fields

MOST_LOGPROBS = 20


class ChatFields(SharedFields):
    messages: list[Message] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None


SHAPES = (ChatFields, RenderFields, ToolFields, FormatFields)
KNOWN = frozenset(name for shape in SHAPES for name in shape.__struct_fields__)


class ChatDialect:
    """See `Dialect`."""

    def parse(self, body: bytes) -> Ask:
        said = read_object(body)
        refuse_unsupported(said, KNOWN)
        refuse_many_parts(said)
        fields = read_fields(said, ChatFields)
        rendering = options_of(read_fields(said, RenderFields))
        tools = tools_of(read_fields(said, ToolFields))
        bound = bound_of(read_fields(said, FormatFields))
        include_usage = usage_wanted(fields)
        return Ask(
            turns=turns_of(fields.messages),
            model=model_of(fields.model),
            sampling=sampling_of(fields),
            max_tokens=max_tokens_of(fields),
            reasoning_budget=agreed(fields, "reasoning_budget", "thinking_token_budget"),
            ending=ending_of(fields),
            choices=choices_of(fields),
            logprobs=_logprobs(fields),
            rendering=rendering,
            tools=tools,
            bound=bound,
            stream=bool(fields.stream),
            include_usage=include_usage,
            ignored=unknown_names([*said, *names_inside(said)], KNOWN),
        )

    def voice(self, ask: Ask, model: str, echoes: Sequence[Echo] = ()) -> ChatVoice:
        return ChatVoice(
            f"chatcmpl-{uuid.uuid4().hex}",
            int(time.time()),
            model,
            include_usage=ask.include_usage,
            logprobs=ask.logprobs is not None,
            choices=ask.choices,
        )


def _logprobs(fields: ChatFields) -> int | None:
    """How many likeliest tokens are told beside each; None for no log-probabilities."""
    if fields.top_logprobs and not fields.logprobs:
        raise InvalidField("`top_logprobs` needs `logprobs` to be true", param="top_logprobs")
    return fields.top_logprobs or 0 if fields.logprobs else None
