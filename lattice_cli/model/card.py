"""What the doors may hold of a model: names, tokenizer, template, window. No weights.

Thread: any
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from lattice_cli.job import SamplingChoice

if TYPE_CHECKING:
    from lattice_cli.model.literal import LiteralEncoder

SourceKind = Literal["folder", "gguf", "script"]
FormatKind = Literal["mlx", "hf", "q4", "gguf", "script"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model found on this machine. `served_id` is the name it answers to."""

    served_id: str
    path: Path
    kind: SourceKind


@dataclass(frozen=True, slots=True)
class ModelFormat:
    """What a model's headers say; no weights were opened.

    `quantization` is for people ("4-bit group 64", "Q4_1", "none"); `context_tokens` is the
    trained window, None where the config does not name one; `nbytes` is the size on disk; `unused` says which of its
    tensors are left out (unused.py).
    """

    kind: FormatKind
    architecture: str
    quantization: str
    context_tokens: int | None
    nbytes: int
    unused: str | None = None


class Tokenizer(Protocol):
    """The little we need of a tokenizer. Safe to share between threads."""

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, added tokens included."""

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; control tokens written in it are recognised, none are added."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without clean-up; special tokens are left out, invalid bytes become U+FFFD."""

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes one id adds to a text; empty for special tokens."""


@runtime_checkable
class ControlTokenizer(Tokenizer, Protocol):
    """A tokenizer with control tokens, whose spellings may also be just text."""

    @property
    def literal(self) -> LiteralEncoder:
        """For texts in which both are."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Published by the worker once a model is ready.

    `chat_template` is jinja source, None where the model brings none; `tool_template` is the one for conversations
    with tools, where that is another. `tool_parser` names the dialect of the model's calls, where that is known
    from more than its template (see prompt/traits.py). `end_ids` is the union of what tokenizer, config and
    generation config call an end; `sampling` is what the model's generation_config recommends; `think` are the
    markers round reasoning, None without.
    `opening_ids` stand before a text that is no part of a chat.
    `notes` are sentences for the user about how the model was loaded.
    """

    served_id: str
    format: ModelFormat
    tokenizer: Tokenizer
    context_tokens: int
    end_ids: frozenset[int]
    chat_template: str | None = None
    tool_template: str | None = None
    tool_parser: str | None = None
    bos_token: str = ""
    eos_token: str = ""
    sampling: SamplingChoice = SamplingChoice()
    think: tuple[str, str] | None = None
    notes: tuple[str, ...] = ()
    opening_ids: tuple[int, ...] = ()
