"""How a chat is to be rendered, and how much of the reply may be thought.

Thread: any
"""

from __future__ import annotations

from typing import Any

import msgspec

from lattice_cli.errors import InvalidField
from lattice_cli.prompt.template import RenderOptions
from lattice_cli.prompt.thinking import EFFORTS

SWITCHES = ("enable_thinking", "thinking")


class RenderFields(msgspec.Struct):
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None


def options_of(fields: RenderFields) -> RenderOptions:
    """Raises: InvalidField."""
    if fields.continue_final_message and fields.add_generation_prompt:
        raise InvalidField(
            "`continue_final_message` and `add_generation_prompt` cannot both be true", param="continue_final_message"
        )
    effort = fields.reasoning_effort
    if effort is not None and effort not in EFFORTS:
        raise InvalidField(f"`reasoning_effort` is none of {', '.join(EFFORTS)}", param="reasoning_effort")
    given = {name: value for name, value in (fields.chat_template_kwargs or {}).items() if value is not None}
    return RenderOptions(
        add_generation_prompt=fields.add_generation_prompt is not False,
        continue_final_message=bool(fields.continue_final_message),
        template_kwargs=given,
        enable_thinking=_switch(fields.enable_thinking, given),
        reasoning_effort=effort,
    )


def _switch(enabled: bool | None, given: dict[str, Any]) -> bool | None:
    """What turns thoughts on or off, wherever it is said."""
    for name in SWITCHES:
        said = given.get(name)
        if isinstance(said, bool):
            if enabled is not None and enabled is not said:
                raise InvalidField(
                    f"`enable_thinking` and `chat_template_kwargs.{name}` differ", param="enable_thinking"
                )
            enabled = said
    return enabled
