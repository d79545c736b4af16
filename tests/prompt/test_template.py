"""Conversation -> Prompt: what the template sees, refuses, and opens.

Thread: any
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lattice_cli.conversation import TextPart, ToolCall, Turn, said
from lattice_cli.errors import InvalidField, InvalidMessages, ModelError, UnsupportedField
from lattice_cli.job import Channel, Tool
from lattice_cli.prompt.template import BARE_CHATML, RenderOptions, render_chat
from tests.engine.letters import LETTERS
from tests.prompt.templates import HERMES, card_of

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


def rendered_by(template: str, *turns: Turn) -> str:
    return render_chat(replace(LETTERS, chat_template=template), turns or [said("user", "x")]).text


# Tools, calls and their results.

WEATHER = Tool("get_weather", "Tells the weather", '{"type": "object", "properties": {"city": {"type": "string"}}}')
CALLED = (
    said("user", "Weather in Oslo?"),
    Turn("assistant", tool_calls=(ToolCall("call_1abc", "get_weather", '{"city": "Oslo", "days": 2}'),)),
    Turn("tool", (TextPart('{"sky": "blue"}'),), tool_call_id="call_1abc", name="get_weather"),
)


def test_qwen3_sees_tools_calls_and_results_as_it_was_trained_to() -> None:
    """User reports 45, 47, 48: arguments in a text, no content."""
    prompt = render_chat(card_of("qwen3"), CALLED, tools=[WEATHER])
    told = json.dumps(
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Tells the weather",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
    )
    assert f"<tools>\n{told}\n</tools>" in prompt.text
    assert (
        prompt.text.endswith(
            "<|im_start|>user\nWeather in Oslo?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n"
            '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call><|im_end|>\n'
            '<|im_start|>user\n<tool_response>\n{"sky": "blue"}\n</tool_response><|im_end|>\n<|im_start|>assistant\n'
        )
        or "<think>" in prompt.text.split("Weather in Oslo?")[1]
    )


def test_qwen35_sees_the_arguments_one_by_one() -> None:
    """User report 45."""
    prompt = render_chat(card_of("qwen3.5"), CALLED, tools=[WEATHER])
    assert (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "</function>\n</tool_call><|im_end|>" in prompt.text
    )
    assert prompt.opens_in is Channel.REASONING


def test_a_template_that_asks_for_the_key_of_calls_sees_none_where_there_are_none() -> None:
    text = render_chat(card_of("llama3"), [*CALLED, said("assistant", "Blue."), said("user", "Thanks")]).text
    assert '<|assistant|>{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2}}<|end|>' in text
    assert "<|assistant|>Blue.<|end|><|user|>Thanks<|end|><|assistant|>" in text


def test_ids_of_calls_keep_their_length_and_a_refusal_is_said() -> None:
    text = render_chat(card_of("mistral"), CALLED, tools=[WEATHER]).text
    assert '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}, "id": "call_1abc"}]' in text
    long = replace(CALLED[1], tool_calls=(replace(CALLED[1].tool_calls[0], id="call_of_24_letters_or_so"),))
    with pytest.raises(InvalidMessages, match="length 9"):
        render_chat(card_of("mistral"), [CALLED[0], long])


@pytest.mark.parametrize("arguments", ["", "{}", '{"a"', "[1]", '"text"', "nul\u2028", "[" * 100_000, "1" * 5000])
def test_arguments_that_are_no_object_do_no_harm(arguments: str) -> None:
    turns = [CALLED[0], Turn("assistant", tool_calls=(ToolCall("1", "f", arguments),)), said("user", "x")]
    assert render_chat(card_of("qwen3"), turns).text.count("<tool_call>") == 1


@pytest.mark.parametrize("parameters", ["{}", '{"type": "object"}', '{"type": "object", "properties": {}}', "null"])
@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "qwen3.5", "qwen3-coder", "hermes", "llama3", "mistral"])
def test_tools_without_parameters_or_description_are_rendered_by_all(name: str, parameters: str) -> None:
    """User report 51."""
    assert (
        "bare_tool" in render_chat(card_of(name), [said("user", "x")], tools=[Tool("bare_tool", "", parameters)]).text
    )


def test_the_template_named_tool_use_is_used_with_tools_alone() -> None:
    card = replace(card_of("qwen3"), tool_template=HERMES)
    assert "get_weather - Tells the weather city" in render_chat(card, CALLED, tools=[WEATHER]).text
    assert "get_weather -" not in render_chat(card, [said("user", "x")]).text


def test_tools_for_a_template_that_renders_none_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedField, match="does not render tools") as refused:
        render_chat(CHATML, [said("user", "x")], tools=[WEATHER])
    assert (refused.value.code, refused.value.param) == ("unsupported_feature", "tools")
    assert "--tool-fallback hermes" in (refused.value.hint or "")


def test_the_fallback_offers_tools_in_the_words_of_hermes() -> None:
    options = RenderOptions(tool_fallback=True)
    text = render_chat(CHATML, [said("system", "Be brief."), *CALLED], tools=[WEATHER], options=options).text
    head, _, rest = text.partition("<|im_end|>\n")
    assert head.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n\n") and '"name": "get_weather"' in head
    assert rest == (
        "<|im_start|>user\nWeather in Oslo?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call><|im_end|>\n'
        '<|im_start|>user\n<tool_response>\n{"sky": "blue"}\n</tool_response><|im_end|>\n<|im_start|>assistant\n'
    )
    own = render_chat(card_of("qwen3"), CALLED, tools=[WEATHER], options=options)
    assert own == render_chat(card_of("qwen3"), CALLED, tools=[WEATHER])


def test_results_one_after_another_are_one_turn_of_the_fallback() -> None:
    options = RenderOptions(tool_fallback=True)
    text = render_chat(CHATML, [*CALLED, CALLED[2]], tools=[WEATHER], options=options).text
    assert text.count("<|im_start|>user") == 2


# The words of the system.


def test_words_of_the_system_go_where_the_template_can_say_them() -> None:
    """User report 114: a second or a later one breaks some templates and is lost in others."""
    turns = [said("system", "A"), said("system", "B"), said("user", "q"), said("assistant", "a")]
    turns += [said("system", "C"), said("user", "r")]
    anywhere = render_chat(card_of("qwen2.5"), turns).text
    assert [anywhere.index(f"\n{word}<|im_end|>") for word in "ABqaCr"] == sorted(
        anywhere.index(f"\n{word}<|im_end|>") for word in "ABqaCr"
    )
    assert render_chat(card_of("qwen3.5"), turns).text.startswith("<|im_start|>system\nA\n\nB\n\nC<|im_end|>\n")
    assert "A\n\nB\n\nC" in render_chat(card_of("smollm3"), turns).text
    assert "<user>A\n\nB\n\nC\n\nq\n" in render_chat(card_of("no-system"), turns).text


def test_an_empty_system_message_is_no_fault() -> None:
    """User report 83."""
    for name in ("qwen3", "qwen3.5", "smollm3", "no-system"):
        assert "hi" in render_chat(card_of(name), [said("system", ""), said("user", "hi")]).text


# Thoughts.


def test_thoughts_told_apart_are_given_under_the_keys_that_the_template_reads() -> None:
    turns = [said("user", "q"), Turn("assistant", (TextPart("a"),), reasoning="because")]
    text = render_chat(card_of("qwen3"), turns).text
    assert "<|im_start|>assistant\n<think>\nbecause\n</think>\n\na<|im_end|>" in text
    old = render_chat(card_of("qwen3"), [*turns, said("user", "r")]).text
    assert "because" not in old  # the template leaves thoughts of earlier turns out
    assert rendered_by("{{ messages[0] | tojson }}{# reasoning #}", turns[1]) == json.dumps(
        {"role": "assistant", "content": "a", "reasoning": "because"}
    )


def test_the_switch_of_thinking() -> None:
    """User report 52: off, on, and the template's default, which differ."""
    q = [said("user", "2+2?")]
    card = card_of("qwen3.5")
    off = render_chat(card, q, options=RenderOptions(enable_thinking=False))
    assert off.text.endswith("<think>\n\n</think>\n\n") and off.opens_in is Channel.ANSWER
    for options in (RenderOptions(), RenderOptions(enable_thinking=True)):
        assert render_chat(card, q, options=options).opens_in is Channel.REASONING
    by_kwargs = RenderOptions(template_kwargs={"enable_thinking": False}, enable_thinking=True)
    assert render_chat(card, q, options=by_kwargs) == off


def test_a_users_text_does_not_open_the_reply_in_a_thought() -> None:
    """A template without a prompt for the reply ends with what the user said."""
    card = replace(LETTERS, chat_template="{{ messages[-1].content }}")
    assert render_chat(card, [said("user", "what is <think>")]).opens_in is Channel.ANSWER


def test_kwargs_reach_the_template_and_cannot_take_the_place_of_messages() -> None:
    card = replace(LETTERS, chat_template="{{ tone }}{{ self_made | tojson }}{{ self is defined }}")
    options = RenderOptions(template_kwargs={"tone": "x<think>", "self_made": {"a": [1, None]}})
    assert render_chat(card, [said("user", "x")], options=options).text.startswith('x<think>{"a": [1, null]}')
    for name in ("messages", "tools", "add_generation_prompt", "bos_token"):
        with pytest.raises(InvalidField) as refused:
            render_chat(card, [said("user", "x")], options=RenderOptions(template_kwargs={name: []}))
        assert refused.value.param == f"chat_template_kwargs.{name}"


# The end of a prompt.

CONTINUE = RenderOptions(continue_final_message=True)


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "qwen3.5", "qwen3-coder", "smollm3", "llama3", "mistral"])
@pytest.mark.parametrize("text", ["The capital is", "The capital is ", "", "ends <|im_end|>", "[INST] \n"])
def test_a_last_answer_is_continued_exactly_where_it_ends(name: str, text: str) -> None:
    """User report 115."""
    turns = [said("user", "Capital of France?"), said("assistant", text)]
    prompt = render_chat(card_of(name), turns, options=CONTINUE)
    assert prompt.text.endswith(text) and not prompt.text.endswith(("<|im_end|>\n", "</s>"))
    assert prompt.text.count("Capital of France?") == 1
    assert prompt.opens_in is Channel.ANSWER


def test_without_a_prompt_for_the_reply_the_last_turn_is_whole() -> None:
    prompt = render_chat(CHATML, [said("user", "hi")], options=RenderOptions(add_generation_prompt=False))
    assert prompt.text == "<|im_start|>user\nhi<|im_end|>\n"


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "bare"])
def test_a_thought_that_was_cut_is_continued_as_a_thought(name: str) -> None:
    card = CHATML if name == "bare" else card_of(name)
    for last in (said("assistant", "<think>\nI won"), Turn("assistant", reasoning="I won")):
        prompt = render_chat(card, [said("user", "q"), last], options=CONTINUE)
        assert prompt.text.endswith("<think>\nI won" if name != "bare" or last.parts else "<think>I won")
        assert prompt.text.count("<think>") == 1 and "</think>" not in prompt.text
        assert prompt.opens_in is Channel.REASONING


def test_an_answer_after_its_thoughts_is_continued_as_an_answer() -> None:
    last = Turn("assistant", (TextPart("So"),), reasoning="I won")
    prompt = render_chat(card_of("qwen3"), [said("user", "q"), last], options=CONTINUE)
    assert prompt.text.endswith("<think>\nI won\n</think>\n\nSo")
    assert prompt.opens_in is Channel.ANSWER


def test_what_cannot_be_continued_is_said() -> None:
    for last in (said("user", "x"), CALLED[1], CALLED[2]):
        with pytest.raises(InvalidMessages) as refused:
            render_chat(card_of("qwen3"), [said("user", "q"), last], options=CONTINUE)
        assert refused.value.param == "continue_final_message"
    silent = replace(LETTERS, chat_template="{{ messages[0].content }}")
    with pytest.raises(InvalidMessages, match="does not print the last message"):
        render_chat(silent, [said("user", "q"), said("assistant", "a")], options=CONTINUE)
