"""Where in a prompt a state that cannot be trimmed is kept: every such place ends a chunk, and each costs memory.

Knows numbers of tokens; knows no tensors.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

SPACING_TOKENS = 256  # in a long text, so that an edit in its middle need not read it all again; see `_grid`
NEWEST_TURNS = 4  # whose beginnings are cuts: edits are of the last turns
TAIL_TOKENS = 64  # before its end a prompt is cut once more: a last message is edited at its end
NEAR_TOKENS = 16  # two cuts are further apart: reading so few tokens costs less than keeping a state


def choose_cuts(
    turns: Sequence[int],
    total: int,
    done: int,
    known: int,
    state_bytes: int,
    budget_bytes: int,
    spacing_tokens: int = SPACING_TOKENS,
) -> list[int]:
    """Places between `done` (what is read) and the last token of a prompt of `total`, in order.

    `turns` are the places where its turns begin, the last one maybe the reply's; `known` of its tokens another prompt
    had, too, and there they part. `state_bytes` is what keeping one state takes, as far as is known.
    """
    chosen: list[int] = []
    most = max(2, budget_bytes // 8 // max(1, state_bytes))
    for place in _wanted(turns, total, known, _grid(total, most, spacing_tokens)):
        near = (*chosen, done) if place in turns[-1:] else (*chosen, done, total - 1)
        if done < place < total - 1 and all(abs(place - other) >= NEAR_TOKENS for other in near):
            chosen.append(place)
    return sorted(chosen)


def _wanted(turns: Sequence[int], total: int, known: int, grid: list[int]) -> Iterator[int]:
    """What matters most comes first."""
    yield known
    yield from turns[:-NEWEST_TURNS][:1]  # the end of the system turn
    yield from reversed(turns[-NEWEST_TURNS:])
    yield (total - TAIL_TOKENS) // 128 * 128
    yield from grid


def _grid(total: int, most: int, spacing: int) -> list[int]:
    """Multiples of a spacing that grows with the text: at most `most` and at most 16 of them."""
    while total // spacing > min(most, 16):
        spacing *= 2
    return list(range(spacing, total, spacing))
