"""The prefix cache without a network: what is found, what is kept, what goes.

Thread: any
"""

from __future__ import annotations

import random
from collections.abc import Hashable
from itertools import pairwise
from typing import Any

import pytest

from lattice_cli.engine.prefix import PrefixCache
from lattice_cli.engine.prefix_cuts import choose_cuts
from lattice_cli.engine.prefix_kept import Kept
from lattice_cli.engine.prefix_tree import common
from tests.samples import seeds

pytestmark = pytest.mark.pure

Ids = tuple[int, ...]
PAGE = 4


class Paper:
    """Caches that are the ids they hold, in pages of four tokens; a page costs 4 bytes, a state that stands for itself
    one more. `trims` says whether shorter prefixes can be had of a state.
    """

    def __init__(self, trims: bool) -> None:
        self.trims = trims

    def trimmable(self, caches: list[Any]) -> bool:
        return self.trims

    def keep(self, caches: list[Any], tokens: int, like: Kept | None, shared: int) -> Kept | None:
        ids: Ids = tuple(caches)
        if len(ids) != tokens:
            return None
        pieces: dict[Hashable, int] = {ids[: at + PAGE]: 4 for at in range(0, tokens, PAGE)}
        if not self.trims:
            pieces[("state", ids)] = 1
        return Kept(tokens, ids, pieces, self.trims)

    def restore(self, kept: Kept, tokens: int) -> list[Any]:
        assert tokens == kept.tokens or kept.trims
        return list(kept.state[:tokens])


def cache_of(*prefixes: str, trims: bool = True, budget: int = 1000) -> PrefixCache:
    cache = PrefixCache(Paper(trims), budget)
    for text in prefixes:
        cache.keep(letters(text), list(letters(text)))
    return cache


def letters(text: str) -> Ids:
    return tuple(map(ord, text))


def found(cache: PrefixCache, text: str) -> str:
    """The prefix that a prompt gets; its caches must hold exactly that."""
    got = cache.find(letters(text))
    assert list(got.caches or []) == list(letters(text)[: got.tokens])
    return text[: got.tokens]


@pytest.mark.parametrize("trims", [True, False])
def test_a_longer_prompt_goes_on_from_what_was_kept(trims: bool) -> None:
    cache = cache_of("the cat", trims=trims)
    assert found(cache, "the cat sat") == "the cat"
    assert found(cache, "a cat sat") == ""


def test_a_state_that_trims_serves_every_prefix() -> None:
    """Report 73: a difference must not throw everything away, only what comes after it."""
    cache = cache_of("the cat sat")
    assert found(cache, "the cow") == "the c"
    assert found(cache, "the cat") == "the ca"


def test_a_state_that_does_not_trim_serves_its_own_place_only() -> None:
    """Report 68: resuming at a shorter prefix restored attention but not recurrent layers. Here a prompt that parts
    earlier gets an earlier snapshot, or none.
    """
    cache = cache_of("the ", "the cat sat", trims=False)
    assert found(cache, "the cow") == "the "
    assert found(cache, "thy") == ""
    assert found(cache, "the cat sat") == "the "  # at its whole length nothing would be left to read


@pytest.mark.parametrize("trims", [True, False])
def test_at_least_one_token_is_left_to_read(trims: bool) -> None:
    """Report 70: the identical prompt trimmed the cache to nothing and then failed."""
    cache = cache_of("ab", "abc", trims=trims)
    for _ in range(3):
        assert found(cache, "abc") == "ab"
    assert found(cache, "a") == ""


def test_where_two_prompts_part_is_told() -> None:
    cache = cache_of("one two three", trims=False)
    assert cache.find(letters("one two four")).known == len("one two ")


def test_what_two_entries_share_counts_once() -> None:
    cache = cache_of("aaaabbbb", "aaaacccc")
    assert (cache.stats.bytes, cache.stats.entries) == (12, 2)
    cache.clear()
    assert (cache.stats.bytes, cache.stats.entries) == (0, 0)


def test_a_longer_state_that_trims_takes_the_place_of_a_shorter_one() -> None:
    cache = cache_of("aaaa", "aaaabbbb", "aaaabb")
    assert cache.stats.entries == 1
    snapshots = cache_of("aaaa", "aaaabbbb", trims=False)
    assert snapshots.stats.entries == 2


def test_what_was_not_used_longest_goes_first() -> None:
    cache = cache_of("aaaa", "bbbb", "cccc", budget=12)
    assert found(cache, "aaaa!") == "aaaa"
    cache.keep(letters("dddd"), list(letters("dddd")))
    assert found(cache, "bbbb!") == ""
    assert [found(cache, text * 4 + "!") for text in "acd"] == ["aaaa", "cccc", "dddd"]
    assert (cache.stats.bytes, cache.stats.evictions) == (12, 1)


def test_what_is_larger_than_the_budget_drives_nothing_out() -> None:
    cache = cache_of("aaaa", budget=8)
    cache.keep(letters("b" * 40), list(letters("b" * 40)))
    assert found(cache, "aaaa!") == "aaaa"
    assert cache.stats.entries == 1


def test_without_a_budget_nothing_is_kept() -> None:
    cache = cache_of("aaaa", budget=0)
    assert found(cache, "aaaab") == ""
    assert (cache.on, cache.stats.bytes, cache.stats.entries) == (False, 0, 0)


def test_caches_that_hold_something_else_are_not_kept() -> None:
    cache = cache_of()
    cache.keep(letters("abc"), list(letters("ab")))
    assert cache.stats.entries == 0


def test_after_a_fault_what_is_doubtful_is_forgotten() -> None:
    cache = cache_of("aaaa")
    cache.trust()
    cache.keep(letters("bbbb"), list(letters("bbbb")))
    cache.distrust()
    assert (found(cache, "aaaa!"), found(cache, "bbbb!")) == ("aaaa", "")
    assert cache.stats.bytes == 4


@pytest.mark.parametrize("trims", [True, False])
@pytest.mark.parametrize("seed", seeds(30, sample=10))
def test_it_agrees_with_a_list_of_all_that_was_kept(trims: bool, seed: int) -> None:
    """Against the plainest cache there is: a list, searched whole. Uses decide nothing while all fits."""
    draw = random.Random(seed)
    cache, all_kept = cache_of(trims=trims, budget=10**9), []
    for _ in range(60):
        base = draw.choice(all_kept) if all_kept and draw.random() < 0.8 else ()
        ids = (*base[: draw.randint(0, len(base))], *(draw.randint(0, 2) for _ in range(draw.randint(1, 9))))
        got = cache.find(ids)
        limit = len(ids) - 1
        if trims:
            best = max((common(kept, ids[:limit]) for kept in all_kept), default=0)
        else:
            best = max((len(kept) for kept in all_kept if len(kept) <= limit and ids[: len(kept)] == kept), default=0)
        assert (got.tokens, tuple(got.caches or ())) == (best, ids[:best])
        assert got.known == max((common(kept, ids[:limit]) for kept in all_kept), default=0)
        if draw.random() < 0.7:
            cache.keep(ids, list(ids))
            all_kept.append(ids)
    told = {ids for ids, _ in cache.entries()}
    assert told <= set(all_kept)
    if not trims:
        assert told == set(all_kept)


@pytest.mark.parametrize("seed", seeds(30, sample=10))
def test_it_never_holds_more_than_its_budget_and_counts_right(seed: int) -> None:
    draw = random.Random(seed)
    cache = cache_of(trims=draw.random() < 0.5, budget=draw.randint(4, 60))
    for step in range(200):
        ids = tuple(draw.randint(0, 1) for _ in range(draw.randint(1, 30)))
        cache.find(ids)
        cache.keep(ids, list(ids))
        if step % 17 == 0:
            draw.choice([cache.trust, cache.distrust])()
        held: dict[Hashable, int] = {}
        for kept_ids, kept in cache.entries():
            assert kept_ids == kept.state
            held |= kept.pieces
        assert sum(held.values()) == cache.stats.bytes <= cache.stats.budget_bytes
    cache.clear()
    assert (cache.stats.bytes, cache.stats.entries) == (0, 0)


# Cuts.


def cuts(
    turns: Ids = (), total: int = 1000, done: int = 0, known: int = 0, state: int = 1, budget: int = 10**9
) -> list[int]:
    return choose_cuts(turns, total, done, known, state, budget)


def test_a_prompt_is_cut_where_its_turns_begin_and_where_it_parts_from_another() -> None:
    made = cuts(turns=(400, 650, 900), total=940, known=777)
    assert set(made) >= {400, 650, 900, 777}
    assert made == sorted(made)


def test_a_long_text_is_cut_everywhere_and_near_its_end() -> None:
    """Without a system turn a rival reuses nothing of an edited message, however long (0 of 74 tokens)."""
    assert cuts(total=1000) == [256, 512, 768, 896]
    assert len(cuts(total=100_000)) <= 18
    assert max(after - before for before, after in pairwise(cuts(total=30_000))) <= 2048


def test_less_memory_means_fewer_cuts() -> None:
    assert len(cuts(total=4000, state=10**6, budget=3 * 10**7)) < len(cuts(total=4000)) / 2


def test_cuts_are_apart_and_ahead() -> None:
    made = cuts(turns=(100, 105, 500, 990), total=1000, done=300, known=505)
    assert all(after - before >= 16 for before, after in pairwise((300, *made)))
    assert 505 in made and 500 not in made and 105 not in made
    assert 990 in made  # the last turn is the reply's, which a history may have otherwise
    assert 990 not in cuts(turns=(990, 999), total=1000)
