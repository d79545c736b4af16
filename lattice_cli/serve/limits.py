"""How long a reply may be: what a request asks for, against the context window, by the rule of the policy.

Thread: request
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lattice_cli.errors import PromptTooLong, UnsupportedField, UsageError
from lattice_cli.job import Limits
from lattice_cli.model.card import ModelCard
from lattice_cli.policy import Room
from lattice_cli.prompt.thinking import Thinking
from lattice_cli.prompt.window import fits
from lattice_cli.serve.settings import ServeSettings
from lattice_cli.serve.wire import Ask

UNSAID = Thinking()
MOST_TOKENS = 4096  # for 0.5.0, whatever the window


@dataclass(frozen=True, slots=True)
class Window:
    """`thinks`: the model marks its thoughts, so that a budget can close them; `opened`: the prompt ends inside one;
    `thinking` is what the request's effort and switch come to.
    """

    context_tokens: int
    prompt_tokens: int
    thinks: bool
    opened: bool = False
    thinking: Thinking = UNSAID


def limits_of(ask: Ask, settings: ServeSettings, window: Window) -> Limits:
    """What ends the reply; `max_tokens` 0 where it must be empty.

    Raises: PromptTooLong; UnsupportedField for a budget that nothing can keep.
    """
    return RULES[settings.policy.room](ask, settings, window)


def check_budget(settings: ServeSettings, card: ModelCard) -> None:
    """Raises: UsageError for `--reasoning-budget` on a model without thoughts, where a request would be refused."""
    if settings.reasoning_budget and card.think is None and settings.policy.room is Room.FITS:
        raise UsageError(
            f"`--reasoning-budget` needs a model that marks its thoughts, and `{card.served_id}` does not",
            hint="leave it out, or choose another model",
        )


def _fitting(ask: Ask, settings: ServeSettings, window: Window) -> Limits:
    if ask.reasoning_budget and not window.thinks:
        raise UnsupportedField(
            "`reasoning_budget` needs a model that marks its thoughts, and this one does not",
            param="reasoning_budget",
            hint="leave it out, or send 0",
        )
    max_tokens = fits(
        window.context_tokens,
        window.prompt_tokens,
        ask.max_tokens,
        settings.max_tokens or ask.usual_max_tokens,
        place="prompt" if ask.prompts else "messages",
    )
    ending = ask.ending
    return Limits(
        max_tokens,
        ending.stop,
        reasoning_tokens=_thoughts(ask, settings, window),
        stop_ids=frozenset(ending.stop_ids),
        ignore_end=ending.ignore_end,
        min_tokens=ending.min_tokens,
        keep_stop=ending.keep_stop,
    )


def _thoughts(ask: Ask, settings: ServeSettings, window: Window) -> int | None:
    """Tokens after which a thought is closed; None for never. An effort changes nothing where there are no thoughts.

    Thoughts that are not wanted, and that the template cannot switch off, are closed before their first token, or
    right after the marker that opens them.
    """
    if window.thinks and window.thinking.budget_tokens == 0:
        return 0 if window.opened else 1
    if ask.reasoning_budget is not None:
        return ask.reasoning_budget or None
    if window.thinks and ask.rendering.reasoning_effort is not None:
        return window.thinking.budget_tokens
    return settings.reasoning_budget or None


def _whole(ask: Ask, settings: ServeSettings, window: Window) -> Limits:
    context, prompt = window.context_tokens, window.prompt_tokens
    answer = min(_wanted(ask, settings), context - 1)
    budget = min(_budget(ask, settings), max(0, context - answer - 1))
    generated = answer + budget
    required = prompt + generated + 1
    if required > context:
        raise PromptTooLong(
            f"prompt has {prompt} tokens, leaving {max(0, context - prompt)} of the {context}-token context window for "
            f"generation, but this request needs {generated} generated tokens plus 1 (total {required}); reduce "
            "max_tokens/reasoning_budget or shorten the prompt"
        )
    return _two_windows(answer, budget, context, window)


def _clamped(ask: Ask, settings: ServeSettings, window: Window) -> Limits:
    room = window.context_tokens - window.prompt_tokens - 1
    if room < 1:
        raise PromptTooLong(
            f"prompt has {window.prompt_tokens} tokens, which leaves no room for an answer in the "
            f"{window.context_tokens}-token context window"
        )
    answer = min(_wanted(ask, settings), MOST_TOKENS)
    budget = min(_budget(ask, settings), MOST_TOKENS)
    return _two_windows(answer, budget, room, window)


def _two_windows(answer: int, budget: int, room: int, window: Window) -> Limits:
    """Thoughts up to the budget, the marker that closes them, then the answer; without a budget they share."""
    if not budget or not window.thinks:
        return Limits(min(answer, room))
    return Limits(min(budget + answer + 1, room), reasoning_tokens=budget, answer_tokens=answer)


def _wanted(ask: Ask, settings: ServeSettings) -> int:
    named = (ask.max_tokens, settings.max_tokens, settings.policy.max_tokens)
    return next((value for value in named if value is not None), MOST_TOKENS)


def _budget(ask: Ask, settings: ServeSettings) -> int:
    """0 in a request is the server's own."""
    return ask.reasoning_budget or settings.reasoning_budget or 0


RULES: dict[Room, Callable[[Ask, ServeSettings, Window], Limits]] = {
    Room.FITS: _fitting,
    Room.WHOLE: _whole,
    Room.CLAMPED: _clamped,
}
