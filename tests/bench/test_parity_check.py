"""The checker itself: each rule, each phase, and what it says of the first thing that is wrong.

Thread: any
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from lattice_cli.bench.parity_call import Answer
from lattice_cli.bench.parity_check import diverges, messages_of
from lattice_cli.bench.parity_expect import Check, Expect
from lattice_cli.bench.parity_rule import Divergence, hold, shown

pytestmark = pytest.mark.pure

JSON_TYPE = {"content-type": "application/json"}
SSE_TYPE = {"content-type": "text/event-stream; charset=utf-8"}
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}


def expect(**said: Any) -> Expect:
    return msgspec.convert(said, Expect)


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0, **head: Any) -> dict[str, Any]:
    return {**HEAD, "choices": [{"index": index, "delta": delta, "finish_reason": finish}], **head}


ROLE, ONE, TWO, END = chunk({"role": "assistant"}), chunk({"content": "a"}), chunk({"content": "b"}), chunk({}, "stop")
USAGE: dict[str, Any] = {**HEAD, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
ERROR: dict[str, Any] = {"error": {"message": "boom", "code": "internal_error"}}
DONE = "[DONE]"


def streamed(*frames: dict[str, Any] | str, headers: dict[str, str] = SSE_TYPE, **said: Any) -> Divergence | None:
    """What is wrong with these frames, where a role, "ab", a stop and the end are expected."""
    lines = (f"data: {frame if isinstance(frame, str) else json.dumps(frame)}\n\n" for frame in frames)
    wanted = {"sse": ["role", {"content": "ab"}, {"finish": "stop"}, "done"], **said}
    return diverges(expect(**wanted), Answer(200, headers, "".join(lines).encode()))


def answered(body: Any, sent: int = 200, kind: dict[str, str] = JSON_TYPE, **said: Any) -> Divergence | None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return diverges(expect(**said), Answer(sent, kind, data))


@pytest.mark.parametrize(
    ("rule", "holds", "fails"),
    [
        ({"equals": 1}, [1, 1.0], [True, 2, "1", None]),
        ({"equals": True}, [True], [1, "true"]),
        ({"equals": None}, [None], [0, False, ""]),
        ({"equals": {"a": [1, {"b": None}]}}, [{"a": [1, {"b": None}]}], [{"a": [1, {}]}, {"a": [True, {"b": None}]}]),
        ({"prefix": "chat"}, ["chat", "chatcmpl-1"], ["cha", 5, None]),
        ({"has": "x"}, ["axb"], ["ab", 5]),
        ({"unsigned": True}, [0, 5], [-1, 1.5, True, "5"]),
        ({"length": 2}, [[1, 2], "ab"], [[1], {"a": 1, "b": 2}]),
        ({"keys": ["a", "b"]}, [{"a": 1, "b": 2}], [{"a": 1}, {"a": 1, "b": 2, "c": 3}, ["a", "b"]]),
    ],
)
def test_a_rule_holds_for_these_values_and_not_for_those(rule: dict[str, Any], holds: Any, fails: Any) -> None:
    check = Check(at="/x", **rule)
    assert [hold(check, {"x": value}) for value in holds] == [None] * len(holds)
    for value in fails:
        there = hold(check, {"x": value})
        assert there is not None and (there.place, there.got) == ("/x", shown(value))
    assert hold(check, {}) is not None  # a value that is not there is never right


def test_absent_is_absent_and_not_null() -> None:
    check = Check(at="/a/0/b", absent=True)
    assert [hold(check, value) for value in ({}, {"a": []}, {"a": [{}]}, {"a": [1]})] == [None] * 4
    assert hold(check, {"a": [{"b": None}]}) == Divergence("/a/0/b", "nothing", "null")


def test_a_pointer_reads_escaped_names() -> None:
    assert hold(Check(at="/a~1b/c~0d/1", equals=2), {"a/b": {"c~d": [1, 2]}}) is None


def test_what_is_wrong_first_is_told() -> None:
    """Status before headers before body before error before fields."""
    body = {"error": {"message": "m", "type": "t", "code": "c", "param": None}}
    said: dict[str, Any] = {"status": 400, "headers": {"Allow": "POST"}, "code": "d", "message": "n"}
    assert answered(body, 500, **said) == Divergence("status", "400", f"500: {shown(json.dumps(body))}")
    assert answered(body, 400, **said) == Divergence("header Allow", '"POST"', "nothing")
    headers = {**JSON_TYPE, "allow": "POST"}
    assert answered(body, 400, headers, **said) == Divergence("/error/code", '"d"', '"c"')
    assert answered(body, 400, headers, **{**said, "code": "c"}) == Divergence("/error/message", '"n"', '"m"')
    assert answered(body, 400, headers, **{**said, "code": "c", "message": "m"}) is None
    assert answered(body, 400, headers, **{**said, "code": "c", "message": {"has": "m"}}) is None


def test_an_envelope_has_exactly_its_fields() -> None:
    two = {"error": {"message": "m", "type": "t"}}
    four = {"error": {"message": "m", "type": "t", "code": "c", "param": None}}
    narrow = {"message": "m", "envelope": ["message", "type"]}
    assert [answered(two, message="m") is None, answered(four, message="m") is None] == [False, True]
    assert [answered(two, **narrow) is None, answered(four, **narrow) is None] == [True, False]
    assert answered({"error": "m"}, code="c") is not None


def test_a_body_is_compared_as_text_or_must_be_json() -> None:
    assert answered(b"ok", text="ok") is None
    assert answered(b"ok!", text="ok") == Divergence("body", '"ok"', '"ok!"')
    assert answered(b"ok then", text={"prefix": "ok"}) is None
    assert answered(b"<html>", fields=[{"at": "/a", "equals": 1}]) == Divergence("body", "JSON", '"<html>"')


def test_a_body_that_broke_off_is_never_right() -> None:
    answer = Answer(200, {}, b"ok", cut="nothing came for 5 s")
    there = diverges(expect(text="ok"), answer)
    assert there == Divergence("body", "a whole body", 'nothing came for 5 s, after "ok"')


def test_a_stream_of_its_phases_agrees() -> None:
    """Consecutive deltas of one kind are one phase; comments are nothing."""
    assert streamed(ROLE, ONE, TWO, END, DONE) is None
    assert streamed(ROLE, chunk({"content": "ab"}), END, DONE) is None
    counted = ["role", "content", "finish", "usage", "done"]
    assert streamed(ROLE, ONE, chunk({"content": ""}), TWO, END, USAGE, DONE, sse=counted) is None
    assert streamed(ROLE, ERROR, DONE, sse=["role", {"error": {"code": "internal_error"}}, "done"]) is None


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ((ROLE, ONE, TWO, END), "stream"),  # no [DONE]
        ((ROLE, ONE, TWO, END, DONE, DONE), "frame 5"),
        ((ROLE, ONE, TWO, END, DONE, ONE), "frame 5"),  # anything after the end
        ((ROLE, ONE, TWO, END, USAGE, DONE), "frame 4"),  # usage that nobody asked for
        ((ROLE, ONE, TWO, END, END, DONE), "frame 4"),
        ((ROLE, ONE, TWO, DONE), "frame 3"),  # no finish
        ((ONE, TWO, END, DONE), "frame 0"),  # no opener
        ((ROLE, ROLE, ONE, TWO, END, DONE), "frame 1"),
        ((ROLE, END, DONE), "frame 1"),  # no content
        ((ROLE, ONE, END, TWO, DONE), "frame 1 content"),  # text after the finish
        ((ROLE, ONE, END, DONE), "frame 1 content"),  # less text
        ((ROLE, ONE, TWO, chunk({}, "length"), DONE), "frame 3 finish"),
        ((ROLE, ONE, TWO, ERROR, DONE), "frame 3"),
        ((ROLE, ONE, chunk({"reasoning_content": "b"}), END, DONE), "frame 1 content"),
        ((chunk({"role": "assistant", "content": "a"}), TWO, END, DONE), "frame 0"),  # an opener that speaks
        ((chunk({"role": "user"}), ONE, TWO, END, DONE), "frame 0"),
        ((chunk({"role": "assistant"}, "stop"), ONE, TWO, END, DONE), "frame 0"),
        ((ROLE, ONE, TWO, chunk({"content": "c"}, "stop"), DONE), "frame 3"),  # a finish that speaks
        ((ROLE, ONE, chunk({}), TWO, END, DONE), "frame 1 content"),
        ((ROLE, ONE, chunk({"content": "b"}, id="chatcmpl-2"), END, DONE), "frame 2 /id"),
        ((ROLE, chunk({"content": "ab"}, model="n"), END, DONE), "frame 1 /model"),
        ((chunk({"role": "assistant"}, created="7"), ONE, TWO, END, DONE), "frame 0 /created"),
        ((chunk({"role": "assistant"}, id=5), ONE, TWO, END, DONE), "frame 0 /id"),
        ((chunk({"role": "assistant"}, object="text"), ONE, TWO, END, DONE), "frame 0 /object"),
        ((ROLE, ONE, chunk({"content": "b"}, index=1), END, DONE), "frame 1 content"),
        ((ROLE, ONE, TWO, END, DONE, chunk({}, "stop", index=1)), "frame 5"),
        ((ROLE, "{", END, DONE), "frame 1"),
        ((), "stream"),
    ],
)
def test_a_stream_that_is_otherwise_differs_there(frames: tuple[Any, ...], place: str) -> None:
    there = streamed(*frames)
    assert there is not None
    assert there.place == place


def test_an_event_with_a_name_and_a_body_that_is_no_stream_differ() -> None:
    body = f"event: x\ndata: {json.dumps(ROLE)}\n\n".encode()
    there = diverges(expect(sse=["role"]), Answer(200, SSE_TYPE, body))
    assert there is not None and there.got.startswith("an event named x")
    there = streamed(ROLE, ONE, TWO, END, DONE, headers=JSON_TYPE)
    assert there is not None and there.place == "header content-type"


def test_each_choice_has_its_own_phases() -> None:
    other = [chunk({"role": "assistant"}, index=1), chunk({"content": "ab"}, index=1), chunk({}, "stop", index=1)]
    mixed = [ROLE, other[0], ONE, other[1], TWO, END, other[2], DONE]
    assert streamed(*mixed, choices=2) is None
    assert streamed(*mixed) is not None
    assert streamed(*[frame for frame in mixed if frame is not other[2]], choices=2) is not None


def test_usage_is_checked_field_by_field_and_fields_point_into_the_frames() -> None:
    frames = (ROLE, ONE, TWO, END, USAGE, DONE)
    phases = ["role", "content", "finish", {"usage": {"prompt_tokens": 7}}, "done"]
    assert streamed(*frames, sse=phases, fields=[{"at": "/4/usage/completion_tokens", "equals": 2}]) is None
    assert streamed(*frames, sse=[*phases[:3], {"usage": {"prompt_tokens": 8}}, "done"]) is not None
    assert streamed(*frames, sse=phases, fields=[{"at": "/1/choices/0/delta/content", "equals": "b"}]) is not None


def test_what_was_told_is_read_from_the_reply_and_messages_from_chatml() -> None:
    prompt = "<|im_start|>system\nbe\nbrief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    told = {"prompt": prompt, "sampling": {"seed": 7}}
    body = {"choices": [{"message": {"content": json.dumps(told) + "xxx"}}]}
    checks = [
        {"at": "/messages", "equals": [["system", "be\nbrief"], ["user", "hi"]]},
        {"at": "/sampling/seed", "equals": 7},
    ]
    assert answered(body, told=checks) is None
    there = answered(body, told=[{"at": "/sampling/seed", "equals": 8}])
    assert there == Divergence("told /sampling/seed", "8", "7")
    assert messages_of(prompt + " ") is None
    assert messages_of("Q: hi\nA:") is None
    lost = answered({"choices": [{"message": {"content": "hello"}}]}, told=checks)
    assert lost is not None and lost.place == "told"


# Calls of tools, and completions.


def call(index: int, **part: Any) -> dict[str, Any]:
    return chunk({"tool_calls": [{"index": index, **part}]})


FIRST = call(0, id="call_1", type="function", function={"name": "add", "arguments": ""})
PART = call(0, function={"arguments": '{"a":'})
REST = call(0, function={"arguments": "1}"})
SECOND = call(1, id="call_2", type="function", function={"name": "mul", "arguments": "{}"})
CALLED = chunk({}, "tool_calls")


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ((ROLE, FIRST, PART, REST, SECOND, CALLED, DONE), None),
        ((ROLE, FIRST, PART, REST, CALLED, DONE), "frame 3 calls"),
        ((ROLE, FIRST, PART, SECOND, CALLED, DONE), "frame 3 calls"),
        ((ROLE, FIRST, PART, REST, call(0, id="call_2", function={"name": "mul"}), CALLED, DONE), "frame 4 calls"),
        ((ROLE, FIRST, PART, REST, call(1, id="call_1", function={"name": "mul"}), CALLED, DONE), "frame 4 calls"),
        ((ROLE, FIRST, PART, REST, SECOND, ONE, CALLED, DONE), "frame 5"),
        ((ROLE, FIRST, PART, REST, SECOND, END, DONE), "frame 5 finish"),
    ],
)
def test_calls_are_joined_as_clients_join_them(frames: Any, place: str | None) -> None:
    wanted = ["role", {"calls": [["add", {"a": 1}], ["mul", {}]]}, {"finish": "tool_calls"}, "done"]
    found = streamed(*frames, sse=wanted)
    assert (found.place if found else None) == place


def test_a_completions_texts_are_contents() -> None:
    def text(said: str, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "text": said, "logprobs": None, "finish_reason": finish}
        return {**HEAD, "object": "text_completion", "choices": [choice]}

    wanted = [{"content": "ab"}, {"finish": "stop"}, "done"]
    assert streamed(text("a"), text("b"), text("", "stop"), DONE, sse=wanted) is None
    found = streamed(text("a"), text("b", "stop"), DONE, sse=wanted)
    assert found is not None and found.place == "frame 0 content"
    found = streamed(text("a"), text("b"), text("", "length"), DONE, sse=wanted)
    assert found is not None and found.place == "frame 2 finish"
