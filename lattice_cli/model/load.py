"""A model on disk -> LoadedModel, every weight in memory.

Knows which reader serves which format and what a card must say; knows no engine. All arrays belong to
the calling thread, which must be the one that generates.

Thread: worker
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_cli.errors import UsageError
from lattice_cli.kernels import blas, native_choice, platform
from lattice_cli.kernels.limits import memory_bytes
from lattice_cli.model import folder as files
from lattice_cli.model.card import ModelCard, ModelFormat, ModelSource
from lattice_cli.model.format import find_gguf, read_format
from lattice_cli.model.gguf_header import read_header
from lattice_cli.model.speech import Speech, gguf_speech, read_speech, think_markers
from lattice_cli.settings import Home

if TYPE_CHECKING:
    from lattice_cli.model.gguf import GgufModel

log = logging.getLogger("lattice.model")

DEFAULT_CONTEXT_TOKENS = 4096  # where a config names no window


@dataclass(slots=True)
class LoadedModel:
    """`network(ids (rows, tokens), cache=...)` gives logits (rows, tokens, vocabulary); arrays live here."""

    network: Any
    card: ModelCard
    nbytes: int


def load(
    source: ModelSource, home: Home, *, tokenizer_dir: Path | None = None, context_tokens: int | None = None
) -> LoadedModel:
    """Read a folder or `.gguf` file, fully evaluated. Cost: seconds; on a CPU 4 bytes of memory a weight.

    `context_tokens` lowers the trained window. Raises: ModelError, InstallError, UsageError.
    """
    products = blas.preload(home)
    platform.check_platform()
    native = native_choice.choose(home)
    found = read_format(source.path)
    window = choose_window(found, context_tokens)
    if found.kind == "gguf":
        speech, network, notes = open_gguf(find_file(source.path), tokenizer_dir)
    else:
        speech, network, notes = _open_folder(source.path, tokenizer_dir, q4=found.kind == "q4")
    notes += (found.unused,) if found.unused else ()
    notes += settle(network, source.path, native, gguf=found.kind == "gguf")
    if products.slow:
        notes += (f"prompts are read slowly because {products.reason}; see `lattice doctor`",)
    card = ModelCard(
        served_id=source.served_id,
        format=found,
        tokenizer=speech.tokenizer,
        context_tokens=window,
        end_ids=speech.end_ids,
        chat_template=speech.template,
        tool_template=speech.tool_template,
        tool_parser=speech.tool_parser,
        bos_token=speech.bos_token,
        eos_token=speech.eos_token,
        sampling=speech.sampling,
        think=think_markers(speech.tokenizer, speech.template),
        notes=notes,
        opening_ids=speech.tokenizer.opening_ids(),
    )
    return LoadedModel(network, card, nbytes_of(network))


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


# Folders.


def _open_folder(folder: Path, tokenizer_dir: Path | None, *, q4: bool) -> tuple[Speech, Any, tuple[str, ...]]:
    from lattice_cli.model.network import load_folder
    from lattice_cli.model.q4 import load_q4

    config = files.read_config(folder)
    speech = read_speech(folder, config, tokenizer_dir)  # before the weights: its faults show at once
    read = load_q4 if q4 else load_folder
    return speech, read(folder, config, float32=platform.backend_name() == "cpu"), ()


# GGUF files.


def open_gguf(file: Path, tokenizer_dir: Path | None) -> tuple[Speech, Any, tuple[str, ...]]:
    """Speech, network (its weights not evaluated) and notes of a GGUF file. Raises: BrokenWeights, UnknownFormat."""
    from lattice_cli.model.gguf import read_gguf

    header = read_header(file)
    # PERF: the tokenizer is built beside the weights, which numpy reads without the interpreter's lock.
    with ThreadPoolExecutor(1, thread_name_prefix="lattice-speech") as pool:
        making = pool.submit(gguf_speech, header, tokenizer_dir)
        model = read_gguf(header)
        speech = making.result()
    return speech, gguf_network(file, model), model.notes


def gguf_network(file: Path, model: GgufModel) -> Any:
    """The network of a GGUF file's weights. Raises: BrokenWeights, UnknownFormat."""
    from lattice_cli.model.network import build_network

    network = build_network(file, model.config, model.weights, model.quantization)
    if model.rope_factors is not None:
        from lattice_cli.model.rope import FactoredRope

        for layer in network.layers:
            layer.self_attn.rope = FactoredRope(
                model.config["head_dim"], model.config["rope_theta"], model.rope_factors
            )
    return network


# Memory.


def settle(network: Any, path: Path, native: native_choice.Native, *, gguf: bool) -> tuple[str, ...]:
    """Choose the number format for this machine and read every weight; notes for the user."""
    import mlx.core as mx

    from lattice_cli.kernels import fused, install
    from lattice_cli.model import precision
    from lattice_cli.model.network import make_caches, translated

    note: str | None = None
    with translated(path):
        if native.module is not None:
            install.pack_modules(network, native.module, exact=native.exact)
            if reason := fused.fuse(network, native.module, half=not native.exact):
                log.info("%s", reason)
        if platform.backend_name() != "cpu":
            if gguf:
                precision.follow_matrices(network)
        elif precision.computes_slowly(network):
            note = precision.packed_note(precision.parameter_count(network), memory_bytes())
            if note is None:
                precision.make_dense(network)
        mx.eval(network.parameters())
        if native.gpu:
            from lattice_cli.kernels import cuda_gpu

            if reason := cuda_gpu.fuse_checked(network, cuda_gpu.read_gpu(), [make_caches(network) for _ in range(2)]):
                log.info("%s", reason)
                note = f"decoding is as fast as mlx-lm's, not faster: {reason}"
    return (note,) if note else ()


def nbytes_of(network: Any) -> int:
    """What its weights take in memory."""
    from mlx.utils import tree_flatten

    leaves: Any = tree_flatten(network.parameters())
    return sum(int(array.nbytes) for _, array in leaves)
