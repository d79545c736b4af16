"""What of a model is text: tokenizer, template, end ids, recommended sampling, thinking markers.

Knows folders and metadata; knows no weights.

Thread: any
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lattice_cli.job import SamplingChoice
from lattice_cli.model import folder as files
from lattice_cli.model.gguf_header import GgufHeader
from lattice_cli.model.gguf_tokenizer import build_tokenizer, gguf_end_ids, gguf_template, gguf_token
from lattice_cli.model.tokenizer import REASONING_MARKERS, FastTokenizer

# What templates hold whose calls mlx-lm reads and we do not (mlx_lm.tokenizer_utils, _infer_tool_parser).
FOREIGN_CALLS = (
    "<minimax:tool_call>", "<|tool_call>", "<start_function_call>", "<longcat_tool_call>", "<arg_key>",
    "<|tool_list_start|>", "<|tool_call_start|>", "<|tool_calls_section_begin|>", '<param name="',
    "<atem:function_calls>",
)  # fmt: skip
# Control tokens that end a turn in the templates in use, whatever the configs forgot (report 112).
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>")


@dataclass(frozen=True, slots=True)
class Speech:
    """Everything a card needs beside the weights. See `ModelCard` for `tool_template` and `tool_parser`."""

    tokenizer: FastTokenizer
    template: str | None
    bos_token: str
    eos_token: str
    end_ids: frozenset[int]
    sampling: SamplingChoice
    tool_template: str | None = None
    tool_parser: str | None = None


def read_speech(folder: Path, config: files.Fields, tokenizer_dir: Path | None = None) -> Speech:
    """Tokenizer, template, end ids and sampling of a folder; `tokenizer_dir` replaces the first two.

    Raises: BrokenWeights, naming the file.
    """
    source = tokenizer_dir or folder
    tokenizer = FastTokenizer.from_folder(source)
    tokenizer_config = files.read_fields(source / "tokenizer_config.json")
    generation_config = files.read_fields(folder / "generation_config.json")
    eos_token = files.token_text(tokenizer_config, "eos_token")
    eos_id = tokenizer.token_id(eos_token) if eos_token else None
    template = files.read_template(source) or files.read_template(folder)
    named = tokenizer_config.get("tool_parser_type")  # as mlx-lm's own conversions have it
    return Speech(
        tokenizer=tokenizer,
        template=template,
        tool_template=files.read_tool_template(source) or files.read_tool_template(folder),
        tool_parser=named if isinstance(named, str) else foreign_parser(tokenizer, template),
        bos_token=files.token_text(tokenizer_config, "bos_token"),
        eos_token=eos_token,
        end_ids=files.end_ids(config, generation_config)
        | tokenizer.special_ids(END_OF_TURN)
        | ({eos_id} if eos_id is not None else set()),
        sampling=files.sampling_choice(generation_config, folder / "generation_config.json"),
    )


def gguf_speech(header: GgufHeader, tokenizer_dir: Path | None = None) -> Speech:
    """The same of a GGUF file's metadata.

    Raises: UnknownFormat for a tokenizer that cannot be rebuilt, BrokenWeights.
    """
    tokenizer = FastTokenizer.from_folder(tokenizer_dir) if tokenizer_dir else build_tokenizer(header)
    own_template = files.read_template(tokenizer_dir) if tokenizer_dir else None
    template = own_template or gguf_template(header.metadata)
    return Speech(
        tokenizer=tokenizer,
        template=template,
        tool_template=None if own_template else gguf_template(header.metadata, "tool_use"),
        tool_parser=foreign_parser(tokenizer, template),
        bos_token=gguf_token(header, "bos"),
        eos_token=gguf_token(header, "eos"),
        end_ids=gguf_end_ids(header.metadata) | tokenizer.special_ids(END_OF_TURN),
        sampling=SamplingChoice(),
    )


def think_markers(tokenizer: FastTokenizer, template: str | None) -> tuple[str, str] | None:
    """The markers round reasoning: both are single tokens, or the template mentions both; else None."""
    opening, closing = REASONING_MARKERS
    single = all(tokenizer.token_id(marker) is not None for marker in REASONING_MARKERS)
    mentioned = template is not None and opening in template and closing in template
    return (opening, closing) if single or mentioned else None


def foreign_parser(tokenizer: FastTokenizer, template: str | None) -> str | None:
    """The name of mlx-lm's parser for calls that we have none for; None for all others.

    Cost: nothing for most models, seconds for the rest: mlx-lm's answer takes transformers with it.
    """
    by_token = tokenizer.token_id("<|tool_call_start|>") is not None or tokenizer.token_id("<|end_of_msg|>") is not None
    if not by_token and not any(mark in (template or "") for mark in FOREIGN_CALLS):
        return None
    from lattice_cli.model.upstream import light_import

    try:
        with light_import():
            tokenizer_utils = importlib.import_module("mlx_lm.tokenizer_utils")
    except ImportError:
        return None
    infer: Any = tokenizer_utils._infer_tool_parser  # UPSTREAM: private
    named = infer(SimpleNamespace(chat_template=template, get_vocab=tokenizer.vocabulary))
    return str(named) if named else None
