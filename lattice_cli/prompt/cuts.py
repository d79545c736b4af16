"""Where the turns of a rendered conversation begin, among its token ids.

A template says so itself: it puts control tokens round turns. Of those that stand close together the last one counts,
so a cut lies behind whatever ends a turn and before the role of the next. Markers of thoughts and calls are no turns.

Thread: any
"""

from __future__ import annotations

from collections.abc import Sequence

from lattice_cli.model.card import ControlTokenizer, ModelCard
from lattice_cli.model.tokenizer import TOOL_MARKERS

CLOSE_TOKENS = 4  # `<|im_end|>`, a line break, `<|im_start|>`: one place
OPENING_TOKENS = 16  # at most, of a reply


def turn_cuts(card: ModelCard, ids: Sequence[int]) -> tuple[int, ...]:
    """Places in `ids`, in order.

    The opening of the reply at the end is one of them only where something about thoughts is in it: templates drop that
    from a history, and what comes after it with it. Otherwise the end of the prompt serves.
    """
    if not isinstance(card.tokenizer, ControlTokenizer):
        return ()
    literal = card.tokenizer.literal
    thoughts = literal.ids_of(card.think or ())
    control = literal.control_ids - thoughts - literal.ids_of(TOOL_MARKERS)
    places = [place for place, token in enumerate(ids) if token in control]
    ends = [
        place for place, after in zip(places, [*places[1:], len(ids) * 2], strict=True) if after - place > CLOSE_TOKENS
    ]
    if ends and len(ids) - ends[-1] <= OPENING_TOKENS and not thoughts & frozenset(ids[ends[-1] :]):
        ends.pop()
    return tuple(place for place in ends if place > 0)
