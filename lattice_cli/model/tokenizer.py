"""Encode, decode, and the exact bytes of one token: the little we need of a tokenizer.

Knows the `tokenizers` library; knows no model and no template. Invariant: the bytes of the ids of a
text, joined, are what `decode` reads, so streamed and whole answers are the same text.

Thread: any
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cached_property
from pathlib import Path

import tokenizers

from lattice_cli.errors import BrokenWeights
from lattice_cli.model.literal import LiteralEncoder

REASONING_MARKERS = ("<think>", "</think>")
# Round calls of tools, in the dialects that engine/calls.py reads; some vocabularies have them as special tokens.
TOOL_MARKERS = (
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|tool_call_start|>", "<|tool_call_end|>",
    "<|tool_call>", "<tool_call|>", "<minimax:tool_call>", "</minimax:tool_call>", "<start_function_call>",
    "<end_function_call>", "<longcat_tool_call>", "</longcat_tool_call>", "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
)  # fmt: skip
_VISIBLE = frozenset((*REASONING_MARKERS, *TOOL_MARKERS))
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_SPACE = "\u2581"  # ▁, SentencePiece's space


class Spelling(Enum):
    """How a vocabulary writes bytes."""

    BYTE_LEVEL = "byte-level"  # GPT-2's letter for each byte
    SENTENCEPIECE = "sentencepiece"  # ▁ for a space, <0xNN> for a byte
    OTHER = "other"  # whatever the decoder makes of one id


def _byte_letters() -> dict[str, int]:
    """GPT-2's printable letter of each byte (openai/gpt-2, encoder.py, bytes_to_unicode)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return {chr(byte) if byte in printable else chr(next(others)): byte for byte in range(256)}


_BYTE_OF = _byte_letters()


def spelling_of(tokenizer: tokenizers.Tokenizer) -> Spelling:
    """Decided from vocabulary and decoder together (report 6).

    A vocabulary that holds the bytes' letters (SmolLM2 lacks a few) is byte-level whatever its decoder,
    unless more of its tokens begin with ▁ than with Ġ: large SentencePiece vocabularies hold all those
    letters as letters.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    byte_spaces = sum(token.startswith("Ġ") for token in vocabulary)
    piece_spaces = sum(token.startswith(_SPACE) for token in vocabulary)
    if byte_spaces >= piece_spaces and sum(letter in vocabulary for letter in _BYTE_OF) >= 200:
        return Spelling.BYTE_LEVEL
    if piece_spaces or "<0x0A>" in vocabulary:
        return Spelling.SENTENCEPIECE
    return Spelling.BYTE_LEVEL if type(tokenizer.decoder).__name__ == "ByteLevel" else Spelling.OTHER


class FastTokenizer:
    """Implements `model.card.Tokenizer` over a `tokenizers.Tokenizer`, which it takes over.

    Special tokens have no bytes, except the markers round reasoning and calls of tools, which keep their text so
    that the engine can split on them.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        tokenizer.no_truncation()  # tokenizer.json files of fine-tunes bring both
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._spelling = spelling_of(tokenizer)
        self._added = {i: (token.content, token.special) for i, token in tokenizer.get_added_tokens_decoder().items()}
        self._strips_space = self._spelling is Spelling.SENTENCEPIECE and _strips_first_space(tokenizer)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_folder(cls, folder: Path) -> FastTokenizer:
        """The tokenizer of a model folder. Cost: 0.1-1 s; the folder's `tokenizer_class` is not looked at
        when tokenizer.json is there (report 117).

        Raises: BrokenWeights, naming the file.
        """
        file = folder / "tokenizer.json"
        if file.is_file():
            return cls(_read_tokenizer_json(file))
        return cls(_convert_slow(folder))

    @property
    def spelling(self) -> Spelling:
        """How the vocabulary writes bytes."""
        return self._spelling

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @cached_property
    def literal(self) -> LiteralEncoder:
        """For texts in which a control token's spelling may be just text. Made when it is first asked for."""
        return LiteralEncoder(self._tokenizer)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; control tokens written in it are recognised, none are added.

        Lone surrogates are read as U+FFFD.
        """
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        except (UnicodeEncodeError, TypeError):
            whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return list(self._tokenizer.encode(whole, add_special_tokens=False).ids)

    def opening_ids(self) -> tuple[int, ...]:
        """What it puts before a text that is no part of a chat: a token for the beginning, or nothing."""
        whole = self._tokenizer.encode("a", add_special_tokens=True)
        first = next((at for at, special in enumerate(whole.special_tokens_mask) if not special), 0)
        return tuple(whole.ids[:first])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`: their bytes joined, invalid ones as U+FFFD; no clean-up.

        A SentencePiece decoder's habit of dropping the text's first space is kept.
        """
        text = b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")
        return text[1:] if self._strips_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes one id adds to a text; empty for special tokens and unknown ids."""
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._spell(token_id)
        return data

    def _spell(self, token_id: int) -> bytes:
        content, special = self._added.get(token_id, ("", False))
        if special:
            return content.encode() if content in _VISIBLE else b""
        token = self._tokenizer.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        if self._spelling is Spelling.BYTE_LEVEL:
            return byte_level_bytes(token)
        if self._spelling is Spelling.SENTENCEPIECE:
            byte = _BYTE_TOKEN.match(token)
            return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode()
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False)).encode()

    def pieces(self, text: str) -> list[str]:
        """How the pre-tokenizer splits `text` before any merging; control tokens are not recognised."""
        splitter = self._tokenizer.pre_tokenizer
        spans = splitter.pre_tokenize_str(text) if splitter is not None else [(text, (0, len(text)))]
        return [text[start:end] for _, (start, end) in spans]

    def vocabulary(self) -> dict[str, int]:
        """Every token's spelling and id, as the vocabulary writes it. Cost: 0.1 s for 150,000 tokens."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    def token_id(self, text: str) -> int | None:
        """The id of a whole token, None where the vocabulary has no such token."""
        found = self._tokenizer.token_to_id(text)
        return None if found is None else int(found)

    def special_ids(self, texts: Iterable[str]) -> frozenset[int]:
        """Ids of those of `texts` that are special tokens."""
        wanted = set(texts)
        return frozenset(i for i, (content, special) in self._added.items() if special and content in wanted)

    def save(self, file: Path) -> None:
        """Write it as a tokenizer.json."""
        self._tokenizer.save(str(file))


def byte_level_bytes(token: str) -> bytes:
    """A byte-level token's bytes; one with a letter outside the alphabet is an added token, spelled as it is."""
    try:
        return bytes([_BYTE_OF[letter] for letter in token])
    except KeyError:
        return token.encode()


def _strips_first_space(tokenizer: tokenizers.Tokenizer) -> bool:
    decoder = tokenizer.decoder
    return decoder is not None and decoder.decode([_SPACE + "a", _SPACE + "b"]) == "a b"


def _read_tokenizer_json(file: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # UPSTREAM: tokenizers (0.23) raises Exception itself for a file it cannot read
        if type(error) is not Exception:
            raise
        reason = " ".join(str(error).split())
        raise BrokenWeights(f"`{file}` is no tokenizer we can read: {reason}", hint="fetch the file again") from error


def _convert_slow(folder: Path) -> tokenizers.Tokenizer:
    """Convert tokenizer.model, or vocab.json and merges.txt, through transformers. Cost: seconds."""
    files = [folder / name for name in ("tokenizer.model", "vocab.json")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise BrokenWeights(
            f"`{folder / 'tokenizer.json'}` is missing, and there is no `tokenizer.model` or `vocab.json` either",
            hint="fetch the model again, or name a folder that has one with `--tokenizer-dir`",
        )
    try:
        from transformers import AutoTokenizer

        slow = AutoTokenizer.from_pretrained(str(folder), use_fast=True, trust_remote_code=False, local_files_only=True)
        backend = slow.backend_tokenizer
    except (ImportError, OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BrokenWeights(f"`{file}` could not be turned into a tokenizer: {reason}") from error
    if not isinstance(backend, tokenizers.Tokenizer) or backend.get_vocab_size() < 16:  # an empty one of its class
        raise BrokenWeights(f"`{file}` could not be turned into a tokenizer")
    return backend
