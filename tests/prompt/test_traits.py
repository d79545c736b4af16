"""What templates can do, found by asking them.

Thread: any
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice_cli.model.card import ModelFormat
from lattice_cli.prompt.template import BARE_CHATML
from lattice_cli.prompt.traits import SystemPlace, Traits, speech_of, traits_of
from tests.engine.letters import LETTERS
from tests.prompt.templates import HERMES, card_of

pytestmark = pytest.mark.pure

ANYWHERE, FIRST, NOWHERE = SystemPlace.ANYWHERE, SystemPlace.FIRST, SystemPlace.NOWHERE


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        ("qwen2.5", Traits(True, "json")),
        ("qwen3", Traits(True, "json", thinking_switch=True)),
        ("qwen3.5", Traits(True, "qwen3_coder", True, True, FIRST, FIRST)),
        ("qwen3-coder", Traits(True, "qwen3_coder")),
        ("smollm3", Traits(False, None, True, False, FIRST, FIRST)),
        ("llama3", Traits(True, "llama3_json")),
        ("mistral", Traits(True, "mistral", system=FIRST, tool_system=FIRST)),
        ("no-system", Traits(system=NOWHERE, tool_system=NOWHERE)),
    ],
)
def test_templates_in_use(name: str, traits: Traits) -> None:
    assert traits_of(card_of(name)) == traits


def test_a_template_named_tool_use_is_the_one_that_renders_tools() -> None:
    card = replace(LETTERS, chat_template=BARE_CHATML)
    assert traits_of(card) == Traits()
    assert not traits_of(card).calls_tools
    named = traits_of(replace(card, tool_template=HERMES))
    assert (named.renders_tools, named.dialect, named.calls_tools) == (True, "json", True)


def test_a_scripted_model_with_a_tool_parser_counts_as_rendering_tools() -> None:
    script = replace(LETTERS, chat_template=BARE_CHATML, tool_parser="qwen3_coder")
    assert speech_of(script) == "qwen3_coder"
    weights = replace(script, format=ModelFormat("mlx", "llama", "none", 4096, 0))
    assert speech_of(weights) is None  # its template says nothing of tools, so nothing would call them


def test_what_a_model_says_of_its_calls_wins_in_mlx_lms_names() -> None:
    card = replace(card_of("qwen3.5"), tool_parser="json_tools")
    assert speech_of(card) == "json"
    assert speech_of(replace(card, tool_parser="glm47")) == "glm47"


def test_no_template_and_a_broken_one_can_do_nothing() -> None:
    assert traits_of(LETTERS) == Traits()
    broken = traits_of(replace(LETTERS, chat_template="{% if %}"))
    assert (broken.renders_tools, broken.dialect, broken.system) == (False, None, NOWHERE)
