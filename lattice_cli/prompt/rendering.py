"""One use of a model's chat template: turns, tools and options in, text with stand-ins out (see safe.py).

Thread: any
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lattice_cli.conversation import TextPart, Turn
from lattice_cli.errors import InvalidField, InvalidMessages, ModelError, UnsupportedField
from lattice_cli.job import Tool
from lattice_cli.model.card import ModelCard
from lattice_cli.prompt import messages as seen
from lattice_cli.prompt.hermes import with_tools_as_text
from lattice_cli.prompt.safe import Shield
from lattice_cli.prompt.traits import traits_of

# What a template gets from us; `chat_template_kwargs` may name anything else.
RESERVED = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token")
)


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """How a conversation is rendered.

    `continue_final_message`: the prompt ends where the last message's text ends, so the reply goes on with it, and
    `add_generation_prompt` counts for nothing. `template_kwargs` are a request's `chat_template_kwargs`; they win over
    `enable_thinking` (None: the template's default) and `reasoning_effort`, which only some templates read.
    `tool_fallback`: tools are offered in Hermes' words where the template has none of its own.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    tool_fallback: bool = False


class Rendering:
    """One use of a card's template."""

    def __init__(self, card: ModelCard, tools: Sequence[Tool], options: RenderOptions) -> None:
        source = card.tool_template if tools and card.tool_template else card.chat_template
        if source is None:
            raise ModelError(
                f"`{card.served_id}` has no chat template, so it cannot hold a conversation",
                hint="use a model that was trained for chat",
                status=400,
            )
        self.shield = Shield(card)
        self._source = source
        self._card = card
        self._traits = traits_of(card)
        self._tools = seen.tools_of(tools, self.shield)
        self._as_text = options.tool_fallback and not self._traits.renders_tools
        self._values = self._given(options)
        if tools and not self._traits.renders_tools and not self._as_text:
            raise UnsupportedField(
                f"the chat template of `{card.served_id}` does not render tools",
                param="tools",
                hint="use a model that was trained for tools, or start with `--tool-fallback hermes`",
            )

    def whole(self, turns: Sequence[Turn]) -> tuple[str, bool]:
        """The rendered text, and whether it ends inside an open thought."""
        rendered = self._render(turns)
        return rendered, self._card.think is not None and rendered.rstrip().endswith(self._card.think[0])

    def continued(self, turns: Sequence[Turn]) -> tuple[str, bool]:
        """The same up to the end of the last turn's text."""
        last = turns[-1]
        if last.role != "assistant" or last.tool_calls:
            raise InvalidMessages(
                "only an assistant's text can be continued, and the last message is none",
                param="continue_final_message",
            )
        opening, closing = self._card.think or ("", "")
        visible = last.text.lstrip()
        if opening and visible.startswith(opening) and closing not in visible:
            thought = visible[len(opening) :]
        else:
            thought = last.reasoning or "" if not visible else ""
        if thought:
            apart = replace(last, parts=(), reasoning=thought.lstrip("\r\n"))
            cut = self._cut([*turns[:-1], apart])
            if cut is not None:
                return cut, True
            last = replace(last, parts=(TextPart(opening + thought),) if opening else (), reasoning=None)
        cut = self._cut([*turns[:-1], last], thinking=bool(thought))
        if cut is None:
            raise InvalidMessages(
                "the model's chat template does not print the last message, so it cannot be continued",
                param="continue_final_message",
            )
        return cut, bool(thought)

    def _cut(self, turns: Sequence[Turn], thinking: bool = False) -> str | None:
        """What is printed before the end of the last turn's text (or of its thoughts, if it has no text)."""
        mark = self.shield.mark()
        printed = seen.messages_of(turns, self.shield, self._source)
        last = printed[-1]
        if thinking and self._card.think and turns[-1].text.startswith(self._card.think[0]):
            opening = self._card.think[0]
            last["content"] = opening + self.shield.text(turns[-1].text[len(opening) :])
        keys = [key for key in seen.REASONING_KEYS if last.get(key)] if not last["content"] else []
        if turns[-1].reasoning and not turns[-1].parts and not keys:
            return None
        for key in keys or ["content"]:
            last[key] += mark
        rendered = self._printed(printed)
        at = rendered.rfind(mark)
        return rendered[:at].replace(mark, "") if at >= 0 else None

    def _given(self, options: RenderOptions) -> dict[str, Any]:
        for name in options.template_kwargs:
            if name in RESERVED:
                param = f"chat_template_kwargs.{name}"
                raise InvalidField(f"`{param}` has a field of its own in a request", param=param)
        values: dict[str, Any] = {}
        if options.enable_thinking is not None:
            values |= {"enable_thinking": options.enable_thinking, "thinking": options.enable_thinking}
        if options.reasoning_effort is not None:
            values["reasoning_effort"] = options.reasoning_effort
        values |= {name: self.shield.value(value) for name, value in options.template_kwargs.items()}
        return {
            **values,
            "add_generation_prompt": options.add_generation_prompt and not options.continue_final_message,
            "bos_token": self._card.bos_token,
            "eos_token": self._card.eos_token,
            "documents": None,
        }

    def _render(self, turns: Sequence[Turn]) -> str:
        return self._printed(seen.messages_of(turns, self.shield, self._source))

    def _printed(self, messages: list[seen.Message]) -> str:
        tools = self._tools
        if self._as_text:
            messages, tools = with_tools_as_text(messages, tools), []
        place = self._traits.tool_system if tools else self._traits.system
        messages = seen.place_system(messages, place)
        try:
            return self._run(messages, tools)
        except InvalidMessages:
            full = seen.with_empty_descriptions(tools)
            if full == tools:
                raise
            return self._run(messages, full)

    def _run(self, messages: list[seen.Message], tools: list[seen.Message]) -> str:
        from lattice_cli.prompt.sandbox import TEMPLATE_ERRORS, TemplateRefusal, TemplateRunaway, render

        try:
            return render(self._source, {**self._values, "messages": messages, "tools": tools or None})
        except TemplateRefusal as refusal:
            raise InvalidMessages(
                f"the model's chat template refuses this conversation: {refusal}", param="messages"
            ) from refusal
        except TemplateRunaway as runaway:
            raise InvalidMessages(
                f"the model's chat template cannot render this conversation: {runaway}", param="messages"
            ) from runaway
        except TEMPLATE_ERRORS as error:
            raise InvalidMessages(
                "the model's chat template cannot render this conversation",
                param="messages",
                hint="check the order of the roles",
            ) from error
