"""The fold that a plain answer is rendered from.

Thread: any
"""

from __future__ import annotations

import pytest

from lattice_cli.engine.completion import Completion
from lattice_cli.errors import EngineFault
from lattice_cli.events import Failed, Finished, Piece, Prefilled, Started, Timing, Usage
from lattice_cli.job import Channel

pytestmark = pytest.mark.pure


def test_the_channels_are_folded_apart_and_the_end_is_kept() -> None:
    completion = Completion("j")
    end = Finished("j", "stop", Usage(3, 2), Timing())
    for event in (
        Started("j", 3),
        Prefilled("j", 3, 3),
        Piece("j", Channel.REASONING, "h"),
        Piece("j", Channel.REASONING, "m"),
        Piece("j", Channel.ANSWER, "so"),
        end,
    ):
        completion.add(event)
    assert (completion.reasoning, completion.answer, completion.finished, completion.failed) == ("hm", "so", end, None)


def test_a_failure_keeps_what_was_said_before() -> None:
    completion = Completion("j")
    failed = Failed("j", EngineFault("generation failed"))
    completion.add(Piece("j", Channel.ANSWER, "a"))
    completion.add(failed)
    assert (completion.answer, completion.finished, completion.failed) == ("a", None, failed)


def test_the_decode_rate_counts_the_tokens_after_the_first() -> None:
    """Report 134: a rate that holds the prefill is not a decode rate."""
    assert Timing(first_token_s=9.0, decode_s=2.0).decode_rate(11) == 5.0
    assert Timing(decode_s=2.0).decode_rate(1) == 0.0
