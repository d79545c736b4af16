"""Thoughts through the whole server: switched, bounded, cut, never closed; with templates of every habit.

Thread: any
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serve.stage import PATH, Stage, body, stage

pytestmark = pytest.mark.wire

THINK = ["<think>", "</think>"]
TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}; {% endfor %}assistant: "
SWITCH = TURNS + "{% if enable_thinking is defined and enable_thinking %}<think>{% else %}<think></think>{% endif %}"
OPENS = TURNS + "<think>"
THOUGHT = [*"abcdef", "</think>", "\n\n", "42"]
TELL = {"when": "tell", "tokens": [], "tell": True}


def reply(house: Stage, content: str = "hi", **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The message with its finish, and the usage."""
    with house.client() as one:
        answer = one.post(PATH, json=body(content, **fields))
        assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return {**choice["message"], "finish": choice["finish_reason"]}, answer.json()["usage"]


def told(house: Stage, **fields: Any) -> dict[str, Any]:
    """What the engine was asked."""
    message, _ = reply(house, "tell", **fields)
    asked: dict[str, Any] = json.loads(message.get("content") or message["reasoning_content"])
    return asked


@pytest.mark.parametrize(
    ("fields", "prompt", "opens_in"),
    [
        ({}, "<think></think>", "answer"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "<think>", "reasoning"),
        ({"enable_thinking": True}, "<think>", "reasoning"),
        ({"reasoning_effort": "low"}, "<think>", "reasoning"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "<think></think>", "answer"),
        ({"reasoning_effort": "none"}, "<think></think>", "answer"),
        ({"reasoning_effort": "high", "enable_thinking": False}, "<think></think>", "answer"),
    ],
)
def test_a_request_switches_thinking_on_and_off(fields: dict[str, Any], prompt: str, opens_in: str) -> None:
    """Report 52: the switch was accepted and had no effect."""
    with stage([TELL], think=THINK, chat_template=SWITCH) as house:
        asked = told(house, **fields)
    assert (asked["prompt"], asked["opens_in"]) == (f"user: tell; assistant: {prompt}", opens_in)


@pytest.mark.parametrize(
    "fields",
    [{"reasoning_effort": "none"}, {"enable_thinking": False}, {"reasoning_effort": "none", "reasoning_budget": 7}],
)
@pytest.mark.parametrize("template", [OPENS, TURNS], ids=["opens", "does not open"])
def test_thoughts_that_no_template_can_switch_off_are_closed_at_once(fields: dict[str, Any], template: str) -> None:
    """Report 60: "off" was silently impossible on a model without the switch."""
    opened = template == OPENS
    tokens = [*([] if opened else ["<think>"]), "a", "4", "2"]
    with stage([{"tokens": tokens}], think=THINK, chat_template=template) as house:
        message, usage = reply(house, **fields)
    assert (message["content"], message.get("reasoning_content", "")) == ("42", "")
    assert usage["completion_tokens_details"]["reasoning_tokens"] <= 1


def test_thoughts_that_use_up_the_limit_are_told_as_such() -> None:
    """Report 54: an empty answer, and nothing that says why; a budget leaves room for it."""
    with stage([{"tokens": THOUGHT}], think=THINK, chat_template=OPENS) as house:
        message, usage = reply(house, max_tokens=4)
        assert (message["content"], message["reasoning_content"], message["finish"]) == ("", "abcd", "length")
        assert usage["completion_tokens_details"]["reasoning_tokens"] == 4
        message, _ = reply(house, max_tokens=6, reasoning_budget=2)
        assert (message["reasoning_content"], message["finish"]) == ("ab", "length")
        assert message["content"] != ""


def test_a_thought_that_is_never_closed_is_all_there_is() -> None:
    """Report 55: the model ended its turn inside its thoughts."""
    with stage([{"tokens": ["hm", "m"]}], think=THINK, chat_template=OPENS) as house:
        message, _ = reply(house)
    assert (message["content"], message["reasoning_content"], message["finish"]) == ("", "hmm", "stop")


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({}, None),
        ({"reasoning_effort": "minimal"}, 256),
        ({"reasoning_effort": "low"}, 1024),
        ({"reasoning_effort": "medium"}, 4096),
        ({"reasoning_effort": "high"}, 16384),
        ({"reasoning_effort": "xhigh"}, 32768),
        ({"reasoning_effort": "max"}, None),
        ({"reasoning_effort": "low", "reasoning_budget": 7}, 7),
        ({"reasoning_effort": "low", "reasoning_budget": 0}, None),
    ],
)
def test_an_effort_is_a_budget(fields: dict[str, Any], budget: int | None) -> None:
    """As docs/guides/openai.md has it."""
    with stage([TELL], think=THINK, chat_template=OPENS) as house:
        assert told(house, **fields)["limits"]["reasoning_tokens"] == budget


def test_a_schema_holds_whether_or_not_there_are_thoughts() -> None:
    """Report 61: the schema was dropped when thinking was off, or thinking when there was a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    replies = [{"when": "think", "tokens": THOUGHT}, {"tokens": ["42"]}]
    with stage(replies, think=THINK, chat_template=SWITCH) as house:
        for content, on in (("think", True), ("plain", False)):
            message, _ = reply(house, content, enable_thinking=on, response_format=form)
            assert (message["content"], message.get("reasoning_content")) == ("42", "abcdef" if on else None)
