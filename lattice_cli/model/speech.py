"""What of a model is text: tokenizer, template, end ids, recommended sampling, thinking markers.

Knows folders and metadata; knows no weights.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lattice_cli.job import SamplingChoice
from lattice_cli.model import folder as files
from lattice_cli.model.gguf_header import GgufHeader
from lattice_cli.model.gguf_tokenizer import build_tokenizer, gguf_end_ids, gguf_template, gguf_token
from lattice_cli.model.tokenizer import REASONING_MARKERS, FastTokenizer

# Control tokens that end a turn in the templates in use, whatever the configs forgot (report 112).
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>")


@dataclass(frozen=True, slots=True)
class Speech:
    """Everything a card needs beside the weights."""

    tokenizer: FastTokenizer
    template: str | None
    bos_token: str
    eos_token: str
    end_ids: frozenset[int]
    sampling: SamplingChoice


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
    return Speech(
        tokenizer=tokenizer,
        template=files.read_template(source) or files.read_template(folder),
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
    return Speech(
        tokenizer=tokenizer,
        template=own_template or gguf_template(header.metadata),
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
