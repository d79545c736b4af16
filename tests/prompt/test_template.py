"""Conversation -> Prompt: what the template sees, refuses, and opens.

Thread: any
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice_cli.conversation import TextPart, Turn, said
from lattice_cli.errors import InvalidMessages, ModelError
from lattice_cli.job import Channel
from lattice_cli.prompt.template import BARE_CHATML, render_chat
from tests.engine.letters import LETTERS

pytestmark = pytest.mark.pure

CHATML = replace(LETTERS, chat_template=BARE_CHATML)


def test_bare_chatml_is_the_seeds_golden_text() -> None:
    prompt = render_chat(CHATML, [said("user", "hi there")])
    assert prompt.text == "<|im_start|>user\nhi there<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.ids == tuple(map(ord, prompt.text))
    assert prompt.opens_in is Channel.ANSWER


def test_the_parts_of_a_turn_are_joined_in_order_and_the_last_user_turn_is_what_was_asked() -> None:
    """Report 87: all parts must reach the model."""
    turns = [
        said("user", "first"),
        said("assistant", "yes"),
        Turn("user", (TextPart("My code is 12."), TextPart("What is my code?"))),
        said("assistant", "It is"),
    ]
    prompt = render_chat(CHATML, turns)
    assert "My code is 12.What is my code?" in prompt.text
    assert prompt.asked == "My code is 12.What is my code?"


def test_a_template_that_opens_the_thinking_block_opens_the_reply_in_reasoning() -> None:
    card = replace(LETTERS, chat_template="{{ messages[0].content }}<think>\n")
    assert render_chat(card, [said("user", "x")]).opens_in is Channel.REASONING
    closed = replace(LETTERS, chat_template="<think>\n\n</think>\n\n")
    assert render_chat(closed, [said("user", "x")]).opens_in is Channel.ANSWER
    without = replace(card, think=None)
    assert render_chat(without, [said("user", "x")]).opens_in is Channel.ANSWER


@pytest.mark.parametrize(
    ("template", "said_so"),
    [
        ("{{ raise_exception('Conversation roles must alternate') }}", "Conversation roles must alternate"),
        ("{{ messages[5].content }}", "cannot render"),
        ("{{ 1 // 0 }}", "cannot render"),
        ("{{ messages.append(1) }}", "cannot render"),  # the sandbox is immutable
        ("{{ ''.__class__.__mro__ }}", "cannot render"),
        ("{% for i in range(10**9) %}{% endfor %}", "cannot render"),
    ],
)
def test_a_template_that_refuses_or_fails_is_a_bad_request_before_any_stream(template: str, said_so: str) -> None:
    """Report 15: a failure while rendering must be an honest 400."""
    with pytest.raises(InvalidMessages, match=said_so) as refused:
        render_chat(replace(LETTERS, chat_template=template), [said("user", "x")])
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "invalid_messages", "messages")


def test_no_messages_and_no_template_are_told_apart() -> None:
    with pytest.raises(InvalidMessages, match="must not be empty"):
        render_chat(CHATML, [])
    with pytest.raises(ModelError, match="has no chat template") as refused:
        render_chat(LETTERS, [said("user", "x")])
    assert (refused.value.status, refused.value.exit_code) == (400, 3)
    with pytest.raises(ModelError, match="cannot be compiled"):
        render_chat(replace(LETTERS, chat_template="{% if %}"), [said("user", "x")])


def test_what_hugging_face_templates_lean_on_is_there() -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m | tojson }}"
        "{% endfor %}{{ strftime_now('%Y') | length }}{% generation %}x{% endgeneration %}{{ eos_token }}"
    )
    card = replace(LETTERS, chat_template=template, bos_token="<s>", eos_token="</s>")
    text = render_chat(card, [said("user", "a"), said("user", "<é>")]).text
    assert text == '<s>{"role": "user", "content": "<é>"}4x</s>'
