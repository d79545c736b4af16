"""Does it fit: prompt and answer against the context window.

Thread: any
"""

from __future__ import annotations

from lattice_cli.errors import PromptTooLong


def fits(
    context_tokens: int,
    prompt_tokens: int,
    max_tokens: int | None,
    default_max_tokens: int | None = None,
    *,
    place: str = "messages",
) -> int:
    """The number of tokens that may be generated: at least 1 where none are named. `place` is where the prompt is.

    An explicit `max_tokens` must fit whole; an absent one is `default_max_tokens` if that is given,
    cut to the room that is left. One position is kept for the token that ends the reply, as the
    systems we follow do: prompt + max_tokens + 1 <= context.

    Raises: PromptTooLong with both counts.
    """
    room = context_tokens - prompt_tokens - 1
    if room < 1:
        raise PromptTooLong(
            f"the prompt has {prompt_tokens} tokens and the context window is {context_tokens} tokens, "
            "so there is no room for an answer",
            param=place,
            hint="shorten the conversation" if place == "messages" else "shorten it",
        )
    if max_tokens is None:
        return min(default_max_tokens or room, room)
    if max_tokens > room:
        raise PromptTooLong(
            f"prompt ({prompt_tokens} tokens) and max_tokens ({max_tokens}) exceed the context window "
            f"of {context_tokens} tokens",
            param="max_tokens",
            hint=f"ask for at most {room} tokens",
        )
    return max_tokens
