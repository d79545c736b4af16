"""Prompts of real text: the first chapter of "Alice's Adventures in Wonderland" (Lewis Carroll, 1865; public domain),
abridged, in an order of its paragraphs that a number decides.

One token repeated, or random ones, would flatter caches, experts and speculation alike. Knows tokenizers; knows no
engine.

Thread: any
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from importlib import resources

from lattice_cli.job import Prompt
from lattice_cli.model.card import Tokenizer

NEW_TURN_SHARE = 16  # the last of so many parts of a warm prompt is new


@cache
def paragraphs() -> tuple[str, ...]:
    text = resources.files("lattice_cli.bench").joinpath("prose.txt").read_text(encoding="utf-8")
    return tuple(text.splitlines())


def story(seed: int) -> Iterator[str]:
    """The paragraphs without end, shuffled anew each time round."""
    order, draw = list(paragraphs()), random.Random(seed)
    while True:
        draw.shuffle(order)
        yield from order


def words(seed: int, count: int) -> str:
    """The first `count` words of a story."""
    found: list[str] = []
    for paragraph in story(seed):
        found += paragraph.split()
        if len(found) >= count:
            break
    return " ".join(found[:count])


def exact_prompt(tokenizer: Tokenizer, tokens: int, number: int) -> Prompt:
    """Exactly `tokens` tokens that begin unlike those of any other number; the same every time."""
    ids: list[int] = tokenizer.encode(f"{str(number)[::-1]} is the number of this page.\n")
    for paragraph in story(number):
        if len(ids) >= tokens:
            break
        ids += tokenizer.encode(paragraph + "\n") or [0]
    return _prompt(tokenizer, ids[:tokens])


def warm_prompt(tokenizer: Tokenizer, before: Prompt, number: int) -> Prompt:
    """As long as `before`, of which all but the end is kept: a chat's next turn."""
    kept = len(before.ids) - max(1, len(before.ids) // NEW_TURN_SHARE)
    return _prompt(tokenizer, [*before.ids[:kept], *exact_prompt(tokenizer, len(before.ids) - kept, number).ids])


def edited_prompt(tokenizer: Tokenizer, before: Prompt, number: int) -> Prompt:
    """As long as `before`, one sixteenth in its middle written anew: a chat in which an earlier turn was edited."""
    length = len(before.ids)
    start, count = length // 2, max(1, length // NEW_TURN_SHARE)
    new = exact_prompt(tokenizer, count, number).ids
    return _prompt(tokenizer, [*before.ids[:start], *new, *before.ids[start + count :]][:length])


def _prompt(tokenizer: Tokenizer, ids: list[int]) -> Prompt:
    text = tokenizer.decode(ids)
    return Prompt(ids=tuple(ids), text=text, asked=text)
