"""Conversation -> Prompt, through the model's own jinja template.

Knows templates and token ids; knows no wire and no engine. How templates are kept in bounds is in sandbox.py, how
texts from outside are kept from being control tokens in safe.py.

Thread: any
"""

from __future__ import annotations

from collections.abc import Sequence

from lattice_cli.conversation import Turn
from lattice_cli.errors import InvalidMessages
from lattice_cli.job import Channel, Prompt, Tool
from lattice_cli.model.card import ModelCard
from lattice_cli.prompt.cuts import turn_cuts
from lattice_cli.prompt.rendering import Rendering, RenderOptions

__all__ = ["BARE_CHATML", "RenderOptions", "render_chat"]

BARE_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

DEFAULT = RenderOptions()


def render_chat(
    card: ModelCard, turns: Sequence[Turn], *, tools: Sequence[Tool] = (), options: RenderOptions = DEFAULT
) -> Prompt:
    """Render and encode a conversation, by default with the assistant's turn left open.

    Cost: under a millisecond a kilobyte. Safe on any thread.

    Raises: InvalidMessages (empty, or refused by the template), UnsupportedField (`tools` that the template does not
    render), InvalidField (a reserved name in `template_kwargs`), ModelError (no template).
    """
    if not turns:
        raise InvalidMessages("`messages` must not be empty", param="messages")
    rendering = Rendering(card, tools, options)
    rendered, opened = rendering.continued(turns) if options.continue_final_message else rendering.whole(turns)
    ids = rendering.shield.ids(rendered)
    return Prompt(
        ids=ids,
        text=rendering.shield.seen(rendered),
        opens_in=Channel.REASONING if opened else Channel.ANSWER,
        asked=next((turn.text for turn in reversed(turns) if turn.role == "user"), ""),
        cuts=turn_cuts(card, ids),
    )
