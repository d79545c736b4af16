"""What the default model's chat template can do, for doctor.

Thread: any
"""

from __future__ import annotations

from lattice_cli.model.card import ModelCard, ModelFormat, ModelSource
from lattice_cli.prompt.traits import SystemPlace, Traits, traits_of


def template_traits(source: ModelSource) -> Traits | None:
    """None for a model without a template. Cost: its tokenizer is read, 0.1-1 s.

    Raises: ModelError for files that cannot be read.
    """
    if source.kind == "script":
        return None
    from lattice_cli.model import folder as files
    from lattice_cli.model.format import find_gguf
    from lattice_cli.model.gguf_header import read_header
    from lattice_cli.model.speech import gguf_speech, read_speech, think_markers

    file = source.path if source.kind == "gguf" else find_gguf(source.path)
    if file is not None:
        speech = gguf_speech(read_header(file))
    else:
        speech = read_speech(source.path, files.read_config(source.path))
    if speech.template is None:
        return None
    card = ModelCard(
        served_id=source.served_id,
        format=ModelFormat("hf", "", "none", None, 0),
        tokenizer=speech.tokenizer,
        context_tokens=1,
        end_ids=speech.end_ids,
        chat_template=speech.template,
        tool_template=speech.tool_template,
        tool_parser=speech.tool_parser,
        think=think_markers(speech.tokenizer, speech.template),
    )
    return traits_of(card)


def template_line(traits: Traits | None) -> str:
    """In words."""
    if traits is None:
        return "none: it cannot hold a conversation"
    tools = "no tools (see --tool-fallback)"
    if traits.renders_tools:
        tools = f"tools, called in {traits.dialect}" if traits.dialect else "tools, called in a way that nobody reads"
    thinking = (
        ("thinks" if traits.thinks else "may think") + ", can be switched"
        if traits.thinking_switch
        else ("always thinks" if traits.thinks else "no switch for thinking")
    )
    system = {SystemPlace.NOWHERE: "; no role for the system"}.get(traits.system, "")
    return f"{tools}; {thinking}{system}"
