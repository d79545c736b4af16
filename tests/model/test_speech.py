"""What a folder or a file says of its templates and of who reads its calls.

Thread: any
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from tokenizers import AddedToken

from lattice_cli.model.folder import read_config
from lattice_cli.model.gguf_tokenizer import gguf_template
from lattice_cli.model.speech import Speech, foreign_parser, read_speech
from lattice_cli.model.tokenizer import TOOL_MARKERS, FastTokenizer
from lattice_cli.model.upstream import light_import
from tests.tiny import tiny_tokenizer, write_json, write_tiny_folder


def speech_of(folder: Path, **fields: object) -> Speech:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    write_json(folder / "tokenizer_config.json", {**config, **fields})
    return read_speech(folder, read_config(folder))


@pytest.mark.pure
def test_named_templates(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    assert (speech_of(folder).tool_template, speech_of(folder).tool_parser) == (None, None)
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    found = speech_of(folder, chat_template=named)
    assert (found.template, found.tool_template) == ("D", "T")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("own file")
    assert speech_of(folder).tool_template == "own file"
    metadata = {"tokenizer.chat_template": "D", "tokenizer.chat_template.tool_use": "T"}
    assert (gguf_template(metadata), gguf_template(metadata, "tool_use")) == ("D", "T")


@pytest.mark.pure
def test_a_parser_that_the_files_name_wins(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    assert speech_of(folder, tool_parser_type="glm47").tool_parser == "glm47"
    assert speech_of(folder, tool_parser_type=7).tool_parser is None


@pytest.mark.tiny
def test_mlx_lm_is_asked_about_calls_that_we_cannot_read() -> None:
    tokenizer = FastTokenizer(tiny_tokenizer())
    with light_import():  # as a model is loaded: what it leaves half imported must not be in the way
        importlib.import_module("mlx_lm.models.cache")
    assert foreign_parser(tokenizer, "{{ tools }}<tool_call>{{ tool_call.name }}<arg_key>") == "glm47"
    assert foreign_parser(tokenizer, "<minimax:tool_call>") == "minimax_m2"
    assert foreign_parser(tokenizer, "<tool_call>{{ tool_call.name }}") is None  # ours
    lfm = tiny_tokenizer()
    lfm.add_special_tokens(
        [AddedToken("<|tool_call_start|>", special=True), AddedToken("<|tool_call_end|>", special=True)]
    )
    assert foreign_parser(FastTokenizer(lfm), "no word of it") == "pythonic"


@pytest.mark.pure
def test_special_tokens_round_calls_keep_their_text() -> None:
    """Mistral's `[TOOL_CALLS]` is special; without its text no call could be found."""
    made = tiny_tokenizer()
    made.add_special_tokens([AddedToken(text, special=True) for text in TOOL_MARKERS])
    tokenizer = FastTokenizer(made)
    for text in TOOL_MARKERS:
        assert tokenizer.token_bytes(tokenizer.token_id(text) or -1) == text.encode()
    assert tokenizer.token_bytes(tokenizer.token_id("<|im_end|>") or -1) == b""
