"""A card whose tokens are code points: id 0 ends, every other id is its character.

Thread: any
"""

from __future__ import annotations

from collections.abc import Sequence

from lattice_cli.model.card import ModelCard, ModelFormat


class LetterTokenizer:
    vocabulary_size = 0x110000

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()


LETTERS = ModelCard(
    served_id="letters",
    format=ModelFormat("script", "letters", "none", 4096, 0),
    tokenizer=LetterTokenizer(),
    context_tokens=4096,
    end_ids=frozenset({0}),
    think=("<think>", "</think>"),
)


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]
