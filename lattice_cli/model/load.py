"""A model on disk -> LoadedModel, every weight in memory.

Knows which reader serves which format and what a card must say; knows no engine. All arrays belong to
the calling thread, which must be the one that generates.

Thread: worker
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lattice_cli.errors import UsageError
from lattice_cli.job import SamplingChoice
from lattice_cli.kernels import blas, platform
from lattice_cli.kernels.limits import memory_bytes
from lattice_cli.model import folder as files
from lattice_cli.model.card import ModelCard, ModelFormat, ModelSource
from lattice_cli.model.format import find_gguf, read_format
from lattice_cli.model.gguf_header import read_header
from lattice_cli.model.gguf_tokenizer import build_tokenizer, gguf_end_ids, gguf_template, gguf_token
from lattice_cli.model.tokenizer import REASONING_MARKERS, FastTokenizer
from lattice_cli.settings import Home

DEFAULT_CONTEXT_TOKENS = 4096  # where a config names no window
# Control tokens that end a turn in the templates in use, whatever the configs forgot (report 112).
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>")


@dataclass(slots=True)
class LoadedModel:
    """`network(ids (rows, tokens), cache=...)` gives logits (rows, tokens, vocabulary); arrays live here."""

    network: Any
    card: ModelCard
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Speech:
    """What of a model is text: everything a card needs beside the weights."""

    tokenizer: FastTokenizer
    template: str | None
    bos_token: str
    eos_token: str
    end_ids: frozenset[int]
    sampling: SamplingChoice


def load(
    source: ModelSource, home: Home, *, tokenizer_dir: Path | None = None, context_tokens: int | None = None
) -> LoadedModel:
    """Read a folder or `.gguf` file, fully evaluated. Cost: seconds; on a CPU 4 bytes of memory a weight.

    `context_tokens` lowers the trained window. Raises: ModelError, InstallError, UsageError.
    """
    products = blas.preload(home)
    platform.check_platform()
    found = read_format(source.path)
    window = choose_window(found, context_tokens)
    if found.kind == "gguf":
        speech, network, notes = _open_gguf(find_file(source.path), tokenizer_dir)
    else:
        speech, network, notes = _open_folder(source.path, tokenizer_dir)
    notes += _settle(network, source.path, gguf=found.kind == "gguf")
    if products.slow:
        notes += (f"prompts are read slowly because {products.reason}; see `lattice doctor`",)
    card = ModelCard(
        served_id=source.served_id,
        format=found,
        tokenizer=speech.tokenizer,
        context_tokens=window,
        end_ids=speech.end_ids,
        chat_template=speech.template,
        bos_token=speech.bos_token,
        eos_token=speech.eos_token,
        sampling=speech.sampling,
        think=think_markers(speech.tokenizer, speech.template),
        notes=notes,
    )
    return LoadedModel(network, card, _nbytes(network))


def choose_window(found: ModelFormat, asked: int | None) -> int:
    """The trained window (4096 where none is named), or the smaller one asked for.

    Raises: UsageError for less than 1 or more than the trained window.
    """
    if asked is None:
        return found.context_tokens or DEFAULT_CONTEXT_TOKENS
    if asked < 1:
        raise UsageError(f"`--context` is {asked}, and must be at least 1", param="--context")
    if found.context_tokens and asked > found.context_tokens:
        raise UsageError(
            f"`--context` is {asked}, and the model was trained for {found.context_tokens} tokens",
            param="--context",
            hint=f"give at most {found.context_tokens}, or leave it out",
        )
    return asked


def find_file(path: Path) -> Path:
    """The GGUF file at `path`: itself, or the only one of a folder."""
    return (find_gguf(path) if path.is_dir() else None) or path


def think_markers(tokenizer: FastTokenizer, template: str | None) -> tuple[str, str] | None:
    """The markers round reasoning: both are single tokens, or the template mentions both; else None."""
    opening, closing = REASONING_MARKERS
    single = all(tokenizer.token_id(marker) is not None for marker in REASONING_MARKERS)
    mentioned = template is not None and opening in template and closing in template
    return (opening, closing) if single or mentioned else None


# Folders.


def _open_folder(folder: Path, tokenizer_dir: Path | None) -> tuple[_Speech, Any, tuple[str, ...]]:
    from lattice_cli.model.network import load_folder

    config = files.read_config(folder)
    speech = read_speech(folder, config, tokenizer_dir)  # before the weights: its faults show at once
    return speech, load_folder(folder, config, float32=platform.backend_name() == "cpu"), ()


def read_speech(folder: Path, config: files.Fields, tokenizer_dir: Path | None = None) -> _Speech:
    """Tokenizer, template, end ids and sampling of a folder; `tokenizer_dir` replaces the first two.

    Raises: BrokenWeights, naming the file.
    """
    home = tokenizer_dir or folder
    tokenizer = FastTokenizer.from_folder(home)
    tokenizer_config = files.read_fields(home / "tokenizer_config.json")
    generation_config = files.read_fields(folder / "generation_config.json")
    eos_token = files.token_text(tokenizer_config, "eos_token")
    eos_id = tokenizer.token_id(eos_token) if eos_token else None
    return _Speech(
        tokenizer=tokenizer,
        template=files.read_template(home) or files.read_template(folder),
        bos_token=files.token_text(tokenizer_config, "bos_token"),
        eos_token=eos_token,
        end_ids=files.end_ids(config, generation_config)
        | tokenizer.special_ids(END_OF_TURN)
        | ({eos_id} if eos_id is not None else set()),
        sampling=files.sampling_choice(generation_config, folder / "generation_config.json"),
    )


# GGUF files.


def _open_gguf(file: Path, tokenizer_dir: Path | None) -> tuple[_Speech, Any, tuple[str, ...]]:
    from lattice_cli.model.gguf import read_gguf
    from lattice_cli.model.network import build_network

    header = read_header(file)
    tokenizer = FastTokenizer.from_folder(tokenizer_dir) if tokenizer_dir else build_tokenizer(header)
    own_template = files.read_template(tokenizer_dir) if tokenizer_dir else None
    speech = _Speech(
        tokenizer=tokenizer,
        template=own_template or gguf_template(header.metadata),
        bos_token=gguf_token(header, "bos"),
        eos_token=gguf_token(header, "eos"),
        end_ids=gguf_end_ids(header.metadata) | tokenizer.special_ids(END_OF_TURN),
        sampling=SamplingChoice(),
    )
    model = read_gguf(header)
    network = build_network(file, model.config, model.weights, model.quantization)
    if model.rope_factors is not None:
        from lattice_cli.model.rope import FactoredRope

        for layer in network.layers:
            layer.self_attn.rope = FactoredRope(
                model.config["head_dim"], model.config["rope_theta"], model.rope_factors
            )
    return speech, network, model.notes


# Memory.


def _settle(network: Any, path: Path, *, gguf: bool) -> tuple[str, ...]:
    """Choose the number format for this machine and read every weight; notes for the user."""
    import mlx.core as mx

    from lattice_cli.model import precision
    from lattice_cli.model.network import translated

    note: str | None = None
    with translated(path):
        if platform.backend_name() != "cpu":
            if gguf:
                precision.follow_matrices(network)
        elif precision.computes_slowly(network):
            note = precision.packed_note(precision.parameter_count(network), memory_bytes())
            if note is None:
                precision.make_dense(network)
        mx.eval(network.parameters())
    return (note,) if note else ()


def _nbytes(network: Any) -> int:
    from mlx.utils import tree_flatten

    leaves: Any = tree_flatten(network.parameters())
    return sum(int(array.nbytes) for _, array in leaves)
