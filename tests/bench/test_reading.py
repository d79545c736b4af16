"""What is counted of one stream: a server with known delays, under a clock that only its packets move.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from lattice_cli.bench.load import read_stream
from lattice_cli.bench.reading import Answer, CountTokens, Miss, Reading
from tests.bench.clock import VirtualClock
from tests.bench.stub import finish, text, usage

pytestmark = pytest.mark.pure

Timed = tuple[float, bytes]  # seconds of silence, then these bytes


def event(frame: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(frame).encode() + b"\n\n"


def thought(content: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"reasoning_content": content}, "finish_reason": None}]}


def known(tokens: int = 51, *, hidden: int = 0) -> list[Timed]:
    """300 ms of prompt, then a token each 20 ms, `hidden` of them before the first that is shown; then the end."""
    first = [(0.3 + 0.02 * hidden, event(text("a ")))]
    others = [(0.02, event(text("a "))) for _ in range(tokens - 1 - hidden)]
    told = usage(600, tokens)
    told["usage"]["completion_tokens_details"] = {"reasoning_tokens": hidden}
    return [*first, *others, (0.0, event(finish()) + event(told) + b"data: [DONE]\n\n")]


def cut(packets: Iterable[Timed], size: int) -> Iterator[Timed]:
    """The same bytes at the same times in packets of at most `size`."""
    for silence_s, data in packets:
        for at in range(0, len(data), size):
            yield (silence_s if at == 0 else 0.0, data[at : at + size])


def merged(packets: Iterable[Timed], every: int) -> Iterator[Timed]:
    """A proxy that lets out `every` packets at a time, when the last of them has come."""
    held_s, held = 0.0, []
    for silence_s, data in packets:
        held_s, held = held_s + silence_s, [*held, data]
        if len(held) == every:
            yield held_s, b"".join(held)
            held_s, held = 0.0, []
    if held:
        yield held_s, b"".join(held)


def kept_alive(packets: Iterable[Timed]) -> Iterator[Timed]:
    """A comment in the middle of every silence."""
    for silence_s, data in packets:
        yield silence_s / 2, b": still here\n\n"
        yield silence_s / 2, data


def heard(packets: Iterable[Timed], max_tokens: int = 600, count: CountTokens | None = None) -> Answer | Miss:
    clock = VirtualClock()
    began_s = clock()

    def coming() -> Iterator[bytes]:
        for silence_s, data in packets:
            clock.sleep(silence_s)
            yield data

    return read_stream(coming(), Reading(max_tokens, count), lambda: clock() - began_s)


@pytest.mark.parametrize(
    "packets",
    [
        pytest.param(list(known()), id="a chunk a packet"),
        pytest.param(list(cut(known(), 1)), id="a byte a packet"),
        pytest.param(list(cut(known(), 7)), id="odd packets"),
        pytest.param(list(kept_alive(known())), id="keep-alives"),
    ],
)
def test_known_delays_are_measured_exactly(packets: list[Timed]) -> None:
    answer = heard(packets)
    assert isinstance(answer, Answer)
    assert answer.first_token_s == pytest.approx(0.3)
    assert answer.decode_rate == pytest.approx(50)
    assert answer.gaps_s == pytest.approx([0.02] * 50)
    assert answer.prefill_rate == pytest.approx(2000)
    assert answer.total_s == pytest.approx(1.3)


@pytest.mark.parametrize("every", [2, 3, 5, 10])
def test_a_proxy_that_merges_chunks_changes_no_rate(every: int) -> None:
    """The first packet brings several tokens at once, and a rate that took them for one would be up to a fifth off."""
    answer = heard(merged(known(tokens=51), every))
    assert isinstance(answer, Answer)
    assert answer.decode_rate == pytest.approx(50, rel=0.03)
    assert len(answer.gaps_s) < 51 / every + 1


def test_tokens_are_counted_from_usage_and_not_from_chunks() -> None:
    """Report 135: two chunks that hold nine tokens are nine tokens; each stands for half of them."""
    answer = heard(
        [(1, event(text("one two three"))), (1, event(text(" four"))), (0, event(finish()) + event(usage(20, 9)))]
    )
    assert isinstance(answer, Answer)
    assert answer.completion_tokens == 9
    assert answer.decode_rate == 4.5


def test_hidden_tokens_are_counted_as_thoughts_the_server_tells() -> None:
    answer = heard(known(tokens=30, hidden=20))
    assert isinstance(answer, Answer)
    assert (answer.completion_tokens, answer.reasoning_tokens, answer.doubt) == (30, 20, None)
    assert answer.first_token_s == pytest.approx(0.7)
    assert answer.decode_rate == pytest.approx(50)  # 9 tokens in 180 ms; the hidden ones came before
    assert answer.whole_rate == pytest.approx(30 / 0.88)


def test_thoughts_that_are_shown_are_text() -> None:
    packets = [(1.0, event(thought("hm"))), (1.0, event(text("x"))), (0.0, event(finish()) + event(usage(3, 2)))]
    answer = heard(packets)
    assert isinstance(answer, Answer)
    assert (answer.first_token_s, answer.last_token_s) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("told", "count", "doubt"),
    [
        (90, None, "usage says 90 tokens, and 60 were asked for"),
        (50, None, "usage says 50 tokens, and the text has 40 bytes"),
        (20, None, None),
        (40, lambda text: len(text.split()), "usage says 40 tokens, and the text has 20"),
        (9, lambda text: len(text.split()), "usage says 9 tokens, and the text has 20"),
        (22, lambda text: len(text.split()), None),
    ],
)
def test_a_server_that_lies_about_usage_is_caught(told: int, count: CountTokens | None, doubt: str | None) -> None:
    """20 words of 40 bytes; without a tokenizer only what cannot be is found."""
    packets = [*((0.02, event(text("a "))) for _ in range(20)), (0.0, event(finish()) + event(usage(600, told)))]
    answer = heard(packets, 60, count)
    assert isinstance(answer, Answer)
    assert answer.doubt == doubt


def test_without_usage_the_tokenizer_counts_and_without_one_there_is_no_answer() -> None:
    packets = [(0.3, event(text("a "))), (0.02, event(text("a "))), (0.0, event(finish()))]
    assert heard(packets) == Miss("the server sends no usage in streams, so its tokens cannot be counted", "no usage")
    answer = heard(packets, count=lambda text: len(text.split()))
    assert isinstance(answer, Answer)
    assert (answer.completion_tokens, answer.own_tokens) == (2, 2)


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ([finish("stop"), usage(20, 0)], "empty"),
        ([text(""), finish("stop"), usage(20, 3)], "empty"),
        ([text("a"), usage(20, 1)], "cut short"),
        ([text("a"), {"error": {"message": "boom"}}], "error in the stream"),
    ],
)
def test_a_reply_that_does_not_hold_is_a_failure_of_a_kind(frames: list[dict[str, Any]], kind: str) -> None:
    """Report 137: empty replies, errors and early ends of text counted as successes."""
    outcome = heard([(0.1, event(frame)) for frame in frames])
    assert isinstance(outcome, Miss)
    assert outcome.kind == kind
