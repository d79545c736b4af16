"""From what a request says to the prompts that the engine reads, through the model's template or as they are.

Thread: request
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lattice_cli.errors import InvalidField
from lattice_cli.job import Prompt
from lattice_cli.model.card import ModelCard
from lattice_cli.prompt.template import BARE_CHATML, render_chat
from lattice_cli.prompt.thinking import Thinking, thinking_of
from lattice_cli.prompt.traits import traits_of
from lattice_cli.serve.settings import ServeSettings
from lattice_cli.serve.wire import Ask


def prompts_of(ask: Ask, card: ModelCard, settings: ServeSettings) -> list[Prompt]:
    """One of a chat, else one for each of `ask.prompts`.

    Raises: InvalidMessages, InvalidField, UnsupportedField, ModelError.
    """
    if ask.prompts:
        return [_plain(prompt, card, ask.opening) for prompt in ask.prompts]
    if settings.policy.bare_chatml:
        return [_bare(ask, card)]
    thinking = thinking_for(ask, card)
    effort = ask.rendering.reasoning_effort
    options = replace(
        ask.rendering,
        enable_thinking=thinking.enabled,
        reasoning_effort=None if effort == "none" else effort,
        tool_fallback=settings.tool_fallback,
    )
    return [render_chat(card, ask.turns, tools=ask.tools.tools if ask.tools else (), options=options)]


def _bare(ask: Ask, card: ModelCard) -> Prompt:
    """As lattice_serve has it: bare ChatML, in which control tokens that anybody writes are control tokens."""
    prompt = render_chat(replace(card, chat_template=BARE_CHATML, tool_template=None), ask.turns)
    return replace(prompt, ids=tuple(card.tokenizer.encode(prompt.text)))


def thinking_for(ask: Ask, card: ModelCard) -> Thinking:
    """Whether a chat's reply shall begin with thoughts, and how long they may be by their effort."""
    said = ask.rendering
    if said.reasoning_effort is None and said.enable_thinking is None:
        return Thinking()
    switch = traits_of(card).thinking_switch
    return thinking_of(said.reasoning_effort, switch=switch, enabled=said.enable_thinking)


def _plain(said: str | tuple[int, ...], card: ModelCard, opening: bool) -> Prompt:
    """A text or ids. Control tokens written in a text are recognised: whoever writes raw prompts means them."""
    if isinstance(said, str):
        ids, text = tuple(card.tokenizer.encode(said)), said
        if opening and ids[: len(card.opening_ids)] != card.opening_ids:
            ids = (*card.opening_ids, *ids)
    else:
        check_ids(card, "prompt", said)
        ids, text = said, card.tokenizer.decode(said)
    if not ids:
        raise InvalidField("`prompt` is empty, and this model has no token for the beginning of a text", param="prompt")
    return Prompt(ids=ids, text=text, asked=text)


def check_ids(card: ModelCard, param: str, ids: Iterable[int]) -> None:
    """Raises: InvalidField for an id that the vocabulary lacks; on a CPU it would end the process."""
    size = card.tokenizer.vocabulary_size
    for token_id in ids:
        if token_id >= size:
            raise InvalidField(f"`{param}` names the token {token_id}, and there are {size}", param=param)
