"""Conversation -> Prompt, through the model's own jinja template.

Knows templates and token ids; knows no wire and no engine. Templates come with weights from strangers,
so they run in jinja's immutable sandbox.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from lattice_cli.conversation import Turn
from lattice_cli.errors import InvalidMessages, ModelError
from lattice_cli.job import Channel, Prompt
from lattice_cli.model.card import ModelCard
from lattice_cli.prompt.markers import markers_of

if TYPE_CHECKING:
    import jinja2
    from jinja2.nodes import Node
    from jinja2.parser import Parser

BARE_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class TemplateRefusal(Exception):
    """A template called `raise_exception`: its way to refuse a conversation."""


def _refuse(message: str) -> NoReturn:
    raise TemplateRefusal(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    """As Hugging Face's templates expect it: no HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


@lru_cache(maxsize=16)
def _compile(source: str) -> jinja2.Template:
    """A template ready to render. Cost: 1-20 ms, once for each source."""
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(jinja2.ext.Extension):
        """`{% generation %}` marks what a trainer learns from; for rendering it is its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, GenerationBlock]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ModelError(f"the model's chat template cannot be compiled: {error}") from error


def _render(card: ModelCard, turns: Sequence[Turn]) -> str:
    import jinja2

    if card.chat_template is None:
        raise ModelError(
            f"`{card.served_id}` has no chat template, so it cannot hold a conversation",
            hint="use a model that was trained for chat",
            status=400,
        )
    template = _compile(card.chat_template)
    try:
        return template.render(
            messages=[{"role": turn.role, "content": turn.text} for turn in turns],
            add_generation_prompt=True,
            bos_token=card.bos_token,
            eos_token=card.eos_token,
        )
    except TemplateRefusal as refusal:
        raise InvalidMessages(
            f"the model's chat template refuses this conversation: {refusal}", param="messages"
        ) from refusal
    # A template is a program from outside; what it may raise is the whole of Python's arithmetic and look-up errors.
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise InvalidMessages(
            "the model's chat template cannot render this conversation",
            param="messages",
            hint="check the order of the roles",
        ) from error


def render_chat(card: ModelCard, turns: Sequence[Turn]) -> Prompt:
    """Render and encode a conversation, with the assistant's turn left open.

    Cost: under a millisecond a kilobyte. Safe on any thread.

    Raises: InvalidMessages (empty, or refused by the template), ModelError (no template).
    """
    if not turns:
        raise InvalidMessages("`messages` must not be empty", param="messages")
    text = _render(card, turns)
    asked = next((turn.text for turn in reversed(turns) if turn.role == "user"), "")
    think = markers_of(card).think
    opened = think is not None and text.rstrip().endswith(think[0])
    return Prompt(
        ids=tuple(card.tokenizer.encode(text)),
        text=text,
        opens_in=Channel.REASONING if opened else Channel.ANSWER,
        asked=asked,
    )
