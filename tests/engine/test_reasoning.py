"""The thinking budget on ids: when it forces what.

Thread: any
"""

from __future__ import annotations

import pytest

from lattice_cli.engine.reasoning import Marker, ReasoningBudget

pytestmark = pytest.mark.pure

CLOSE = Marker(b"</t>", (ord("<"), ord("/"), ord("t"), ord(">")))


def budget(tokens: int, opening: bytes | None = None) -> ReasoningBudget:
    return ReasoningBudget(tokens, CLOSE, opening, lambda token_id: bytes([token_id]))


def spoken(each: ReasoningBudget, wish: str, start: str = "") -> str:
    """What a model that wants to say `wish` says under a budget, from `start` on."""
    reply = list(start.encode())
    while len(reply) < len(wish):
        forced = each.forced(reply)
        reply.append(wish.encode()[len(reply)] if forced is None else forced)
    return bytes(reply).decode()


def test_a_marker_of_several_tokens_is_forced_over_consecutive_steps() -> None:
    assert spoken(budget(3), "abcdefghij") == "abc</t>hij"


@pytest.mark.parametrize("out", range(3, 8))
def test_a_row_that_starts_over_inside_the_marker_goes_on_with_it(out: int) -> None:
    whole = "abc</t>hij"
    assert spoken(budget(3), "abcdefghij", start=whole[:out]) == whole


def test_a_thought_that_closed_itself_in_time_is_left_alone_for_ever() -> None:
    each = budget(6)
    assert spoken(each, "a</t>bcdefgh") == "a</t>bcdefgh"
    assert each.free(1_000_000)


def test_a_marker_that_was_only_begun_at_the_budget_is_forced_whole() -> None:
    assert spoken(budget(3), "a</t>b----") == "a</</t>---"


def test_without_the_opening_marker_there_is_no_thought_to_close() -> None:
    assert spoken(budget(2, opening=b"<t>"), "abcdefgh") == "abcdefgh"
    assert spoken(budget(4, opening=b"<t>"), " <t>abcdefgh") == " <t></t>efgh"


def test_nobody_need_look_at_ids_before_the_budget_is_used_up() -> None:
    each = budget(3)
    assert [each.free(count) for count in range(5)] == [True, True, True, False, False]
