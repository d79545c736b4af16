"""POST /tokenize and /detokenize, spelled as vLLM spells them; llama-server's `content` is a name of the text.

Thread: any
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lattice_cli.errors import InvalidField
from lattice_cli.model.card import ModelCard
from lattice_cli.serve.wire import Ask
from lattice_cli.serve.wire.body import read_object
from lattice_cli.serve.wire.fields import refuse_unsupported, unknown_names
from lattice_cli.serve.wire.inside import names_inside
from lattice_cli.serve.wire.messages import Message, refuse_many_parts, turns_of
from lattice_cli.serve.wire.rendering import RenderFields, options_of
from lattice_cli.serve.wire.schema import model_of
from lattice_cli.serve.wire.tools import ToolFields, tools_of
from lattice_cli.wording import read_fields


class TokenizeFields(msgspec.Struct):
    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeFields(msgspec.Struct):
    model: str | None = None
    tokens: list[Annotated[int, Meta(ge=0)]] | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """What is to be told of one text or chat: its ids, and with `spelled` their texts too."""

    ask: Ask
    spelled: bool


def read_tokenize(body: bytes) -> Words:
    """Raises: BadRequest."""
    said = read_object(body)
    known = frozenset(name for shape in (TokenizeFields, RenderFields, ToolFields) for name in shape.__struct_fields__)
    refuse_unsupported(said, known)
    refuse_many_parts(said)
    fields = read_fields(said, TokenizeFields)
    rendering, tools = options_of(read_fields(said, RenderFields)), tools_of(read_fields(said, ToolFields))
    given = [name for name in ("prompt", "content", "messages") if getattr(fields, name) is not None]
    if len(given) != 1:
        raise InvalidField("the body must hold one of `prompt`, `content` and `messages`", param="prompt")
    text = fields.prompt if fields.content is None else fields.content
    ask = Ask(
        turns=() if fields.messages is None else turns_of(fields.messages),
        prompts=() if text is None else (text,),
        model=model_of(fields.model),
        # As there: vLLM puts a token for the beginning before a text unless told otherwise, llama-server does not.
        opening=fields.content is None if fields.add_special_tokens is None else fields.add_special_tokens,
        rendering=rendering,
        tools=tools,
        ignored=unknown_names([*said, *names_inside(said)], known),
    )
    return Words(ask, bool(fields.return_token_strs))


def read_detokenize(body: bytes) -> Ask:
    """The ids are the ask's prompt. Raises: BadRequest."""
    said = read_object(body)
    known = frozenset(DetokenizeFields.__struct_fields__)
    refuse_unsupported(said, known)
    fields = read_fields(said, DetokenizeFields)
    if fields.tokens is None:
        raise InvalidField("`tokens` is missing", param="tokens")
    return Ask(prompts=(tuple(fields.tokens),), model=model_of(fields.model), ignored=unknown_names(said, known))


def told_tokens(ids: Sequence[int], card: ModelCard, *, spelled: bool) -> dict[str, Any]:
    """The ids of a text, in vLLM's words; a token that is no whole text is spelled with U+FFFD."""
    strings = [card.tokenizer.token_bytes(one).decode("utf-8", "replace") for one in ids] if spelled else None
    return {"count": len(ids), "max_model_len": card.context_tokens, "tokens": list(ids), "token_strs": strings}


def told_text(text: str) -> dict[str, Any]:
    """The text of ids, under vLLM's name and under llama-server's."""
    return {"prompt": text, "content": text}
