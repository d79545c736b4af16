"""Prompts of real text.

Thread: any
"""

from __future__ import annotations

from collections import Counter

import pytest

from lattice_cli.bench.prose import exact_prompt, paragraphs, words
from lattice_cli.model.random_weights import StandInTokenizer

pytestmark = pytest.mark.pure

TOKENIZER = StandInTokenizer(1000)


@pytest.mark.parametrize("tokens", [1, 7, 1000, 20_000])
def test_a_prompt_is_exactly_as_long_as_asked(tokens: int) -> None:
    assert len(exact_prompt(TOKENIZER, tokens, 3).ids) == tokens


def test_prompts_begin_unlike_each_other_and_are_the_same_every_time() -> None:
    firsts = [exact_prompt(TOKENIZER, 8, number).ids for number in range(300)]
    assert len(set(firsts)) == 300
    assert firsts[17] == exact_prompt(TOKENIZER, 8, 17).ids


def test_it_is_prose_and_never_one_token_over_and_over() -> None:
    """No letter is a fifth of English; a repeated token is all of its prompt."""
    counts = Counter(exact_prompt(TOKENIZER, 4000, 1).ids)
    assert max(counts.values()) < 4000 / 4  # the space
    assert len(counts) > 40
    assert sum(map(len, paragraphs())) > 7000


def test_words_are_as_many_as_asked_and_go_round() -> None:
    assert [len(words(5, count).split()) for count in (1, 100, 5000)] == [1, 100, 5000]
    assert words(5, 100) != words(6, 100)


def test_the_stand_in_tokenizer_has_a_text_of_its_own_for_every_id() -> None:
    spelled = [TOKENIZER.token_bytes(number) for number in range(1000)]
    assert len(set(spelled)) == 1000
    assert spelled[-1] == b""
    assert TOKENIZER.decode(TOKENIZER.encode("é, it is")) == "é, it is"
