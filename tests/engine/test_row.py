"""One row: tokens in, events out, one terminal event.

Thread: any
"""

from __future__ import annotations

from typing import Any

import pytest

from lattice_cli.engine.row import Row
from lattice_cli.errors import EngineFault, UnsupportedField
from lattice_cli.events import CallPart, Event, Failed, Finished, Piece, Prefilled, Started, Timing, Usage
from lattice_cli.job import Channel, Job, Limits, Prompt, Sampling, Tool, ToolSpeech
from lattice_cli.model.card import ModelCard
from tests.engine.letters import LETTERS, ids

pytestmark = pytest.mark.pure


def row(max_tokens: int = 100, stop: tuple[str, ...] = (), card: ModelCard = LETTERS) -> Row:
    job = Job("j", Prompt(tuple(ids("prompt")), "prompt"), Sampling(), Limits(max_tokens, stop), submitted_s=1.0)
    return Row(job, card)


def fed(row: Row, text: str, end: bool = False) -> list[Event]:
    tokens = [*ids(text), *([0] if end else [])]
    return [event for token in tokens if not row.ended for event in row.accept(token, 5.0)]


def test_an_end_token_ends_the_reply_and_is_not_counted() -> None:
    reply = row()
    assert fed(reply, "hi", end=True) == [
        Piece("j", Channel.ANSWER, "h"),
        Piece("j", Channel.ANSWER, "i"),
        Finished("j", "stop", Usage(6, 2), Timing(4.0, 0.0, 4.0, 0.0)),
    ]


def test_the_limit_ends_the_reply_as_length_and_releases_what_was_held() -> None:
    """Report 10: a reply that was cut must say so."""
    events = fed(row(max_tokens=3, stop=("abcd",)), "abcde")
    assert events[:-1] == [Piece("j", Channel.ANSWER, "abc")]
    assert isinstance(events[-1], Finished)
    assert (events[-1].reason, events[-1].usage.completion_tokens) == ("length", 3)


def test_a_stop_string_ends_the_reply_even_on_the_last_allowed_token() -> None:
    events = fed(row(max_tokens=3, stop=("bc",)), "abc")
    assert events[0] == Piece("j", Channel.ANSWER, "a")
    assert isinstance(events[1], Finished)
    assert (events[1].reason, events[1].stopped_by, events[1].usage.completion_tokens) == ("stop", "bc", 3)


def test_stop_strings_do_not_apply_to_reasoning() -> None:
    events = fed(row(stop=("b",)), "<think>abc</think>xyb")
    assert [(event.channel, event.text) for event in events if isinstance(event, Piece)] == [
        (Channel.REASONING, "a"),
        (Channel.REASONING, "b"),
        (Channel.REASONING, "c"),
        (Channel.ANSWER, "x"),
        (Channel.ANSWER, "y"),
    ]


def test_a_prefill_that_starts_over_is_said_once() -> None:
    reply = row()
    assert reply.start(2.0) == [Started("j", 6)]
    assert reply.prefilled(6, 6, 3.0) == [Prefilled("j", 6, 6)]
    fed(reply, "a")
    assert reply.start(7.0) == []
    assert reply.prefilled(7, 7, 8.0) == []
    assert reply.ids == ids("prompta")


def test_a_cancelled_reply_releases_nothing_and_a_failed_one_only_fails() -> None:
    reply = row(stop=("abc",))
    fed(reply, "ab")
    (end,) = reply.finish("cancelled", 9.0)
    assert isinstance(end, Finished)
    assert end.reason == "cancelled"
    fault = EngineFault("generation failed")
    assert row().fail(fault) == [Failed("j", fault)]


def test_the_clock_of_a_reply_tells_waiting_reading_and_writing_apart() -> None:
    reply = row()
    reply.start(2.0)
    reply.prefilled(6, 6, 4.0)
    reply.accept(ids("a")[0], 4.5)
    (end,) = reply.accept(0, 6.0)
    assert isinstance(end, Finished)
    assert end.timing == Timing(queued_s=1.0, prefill_s=2.0, first_token_s=3.5, decode_s=1.5)


def asked(speech: ToolSpeech | None = None, **limits: Any) -> Row:
    prompt = Prompt(tuple(ids("prompt")), "prompt")
    return Row(Job("j", prompt, Sampling(), Limits(**{"max_tokens": 200, **limits}), speech=speech), LETTERS)


WEATHER = ToolSpeech("json", (Tool("weather"),))
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'


def reason(events: list[Event]) -> str:
    (end,) = [event for event in events if isinstance(event, Finished)]
    return end.reason


def test_a_call_is_said_in_parts_and_is_the_reason_of_an_end() -> None:
    events = fed(asked(WEATHER), "Look: " + CALL, end=True)
    calls = [event for event in events if isinstance(event, CallPart)]
    assert [(call.index, call.name) for call in calls if call.name] == [(0, "weather")]
    assert "".join(call.arguments for call in calls) == '{"city": "Bern"}'
    assert "".join(event.text for event in events if isinstance(event, Piece)).strip() == "Look:"
    assert reason(events) == "tool_calls"


def test_a_limit_is_told_in_spite_of_calls_and_a_stop_text_is_not() -> None:
    """Report 34: agents drop a call whose reply does not end as one; vLLM has it so, too."""
    assert reason(fed(asked(WEATHER, stop=("!",)), CALL + "oh!")) == "tool_calls"
    assert reason(fed(asked(WEATHER, max_tokens=len(CALL)), CALL)) == "length"
    assert reason(fed(asked(WEATHER), "<tool_call> is a marker", end=True)) == "stop"
    assert reason(fed(asked(), CALL, end=True)) == "stop"


def test_stop_strings_do_not_apply_to_calls() -> None:
    events = fed(asked(WEATHER, stop=("weather", "Bern")), CALL, end=True)
    assert reason(events) == "tool_calls"
    assert '"Bern"' in "".join(event.arguments for event in events if isinstance(event, CallPart))


def test_calls_that_nobody_can_read_are_refused() -> None:
    with pytest.raises(UnsupportedField) as raised:
        asked(ToolSpeech("no such dialect", ()))
    assert raised.value.param == "tools"


def test_a_stop_string_may_stay_in_the_answer() -> None:
    events = fed(asked(stop=("bc",), keep_stop=True), "abcd")
    assert "".join(event.text for event in events if isinstance(event, Piece)) == "abc"
    (end,) = [event for event in events if isinstance(event, Finished)]
    assert (end.reason, end.stopped_by) == ("stop", "bc")


def test_stop_ids_end_a_reply_and_ends_can_be_ignored() -> None:
    events = fed(asked(stop_ids=frozenset(ids("c"))), "abc")
    assert "".join(event.text for event in events if isinstance(event, Piece)) == "ab"
    assert reason(events) == "stop"
    both = asked(stop_ids=frozenset(ids("c")), ignore_end=True)
    assert not any(isinstance(event, Finished) for event in fed(both, "ab", end=True))
    assert reason(fed(both, "c")) == "stop"
