"""Where turns begin among the ids of a prompt.

Thread: any
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from lattice_cli.conversation import said
from lattice_cli.job import Prompt
from lattice_cli.model.card import ModelCard, ModelFormat
from lattice_cli.model.tokenizer import FastTokenizer
from lattice_cli.prompt.template import RenderOptions, render_chat
from tests.engine.letters import LETTERS
from tests.prompt.templates import card_of
from tests.tiny import CHAT_TEMPLATE, tiny_tokenizer

pytestmark = pytest.mark.pure

CARD = ModelCard(
    "tiny",
    ModelFormat("hf", "llama", "none", 512, 0),
    FastTokenizer(tiny_tokenizer()),
    512,
    frozenset(),
    chat_template=CHAT_TEMPLATE,
    think=("<think>", "</think>"),
)
THINKING = replace(CARD, chat_template=CHAT_TEMPLATE.replace("assistant\n{%", "assistant\n<think>\n{%"))
TURNS = [said("system", "be short"), said("user", "hello there"), said("assistant", "hi"), said("user", "and now?")]


def parts(prompt: Prompt) -> list[str]:
    """The prompt, taken apart at its cuts."""
    bytes_of = {
        **{256 + n: text for n, text in enumerate(("<end>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"))}
    }
    places = [0, *prompt.cuts, len(prompt.ids)]
    return ["".join(bytes_of.get(i, chr(i)) for i in prompt.ids[a:b]) for a, b in pairwise(places)]


def test_a_cut_stands_before_each_turn() -> None:
    assert parts(render_chat(CARD, TURNS)) == [
        "<|im_start|>system\nbe short<|im_end|>\n",
        "<|im_start|>user\nhello there<|im_end|>\n",
        "<|im_start|>assistant\nhi<|im_end|>\n",
        "<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n",
    ]


def test_a_reply_that_opens_in_a_thought_is_cut_before_it() -> None:
    """A template drops the thought from the history, so the next turn's prompt parts there."""
    assert parts(render_chat(THINKING, TURNS))[-2:] == [
        "<|im_start|>user\nand now?<|im_end|>\n",
        "<|im_start|>assistant\n<think>\n",
    ]


def test_a_control_token_that_somebody_wrote_is_no_turn() -> None:
    turns = [said("user", "a <|im_start|> b </think> c"), said("assistant", "<tool_call>")]
    assert len(render_chat(CARD, turns).cuts) == 1


def test_the_end_of_a_reply_that_is_continued_is_no_cut() -> None:
    prompt = render_chat(CARD, TURNS[:3], options=RenderOptions(continue_final_message=True))
    assert parts(prompt)[-1].endswith("hi")


def test_a_tokenizer_without_control_tokens_has_no_cuts() -> None:
    assert render_chat(replace(LETTERS, chat_template=CHAT_TEMPLATE), TURNS).cuts == ()


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3", "qwen2.5", "smollm3"])
def test_a_longer_history_keeps_the_cuts_of_a_shorter_one(name: str) -> None:
    """What a next turn shares with this prompt reaches at least to this prompt's last cut."""
    card = replace(CARD, chat_template=card_of(name).chat_template)
    before, after = render_chat(card, TURNS[:2]), render_chat(card, TURNS)
    assert before.cuts and after.ids[: before.cuts[-1]] == before.ids[: before.cuts[-1]]
    assert set(before.cuts) <= set(after.cuts)
