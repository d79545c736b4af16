"""A model's tokens as grammars see them: bytes, end tokens, and llguidance's own form of both.

Thread: any
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from lattice_cli.model.card import ModelCard

Mask = np.ndarray[Any, np.dtype[np.bool_]]  # (vocabulary,)


class Vocabulary:
    """A model's tokens as grammars see them. Cost: about a second for 150,000 tokens, once a model.

    Tokens without text (control tokens, holes) and the markers round reasoning are never part of a grammar; the
    model's end tokens say that it is fulfilled.
    """

    def __init__(self, card: ModelCard) -> None:
        import llguidance

        tokenizer, size = card.tokenizer, card.tokenizer.vocabulary_size
        markers = {marker.encode() for marker in card.think or ()}
        self.size = size
        self.end_ids = tuple(sorted(end for end in card.end_ids if 0 <= end < size))
        self.data = [tokenizer.token_bytes(token_id) for token_id in range(size)]
        ends = set(self.end_ids)
        spelled = [b"" if n in ends or data in markers else data for n, data in enumerate(self.data)]
        # NOTE: a grammar needs an end token; where the model has none it gets one beyond the vocabulary.
        eos = self.end_ids or (size,)
        self.tokens = spelled if self.end_ids else [*spelled, b""]
        wrapper: Any = _Spelled(self.tokens, eos, tokenizer.encode)
        self.library = llguidance.LLTokenizer(wrapper, eos_token=list(eos))
        self.usable = np.array([bool(data) or n in ends for n, data in enumerate(spelled)])  # (vocabulary,)
        self.ends = np.isin(np.arange(size), self.end_ids)  # (vocabulary,)
        self.breaks = np.array([bool(data) and not data.strip(b"\r\n") for data in spelled[:size]])  # (vocabulary,)

    def beginning(self, text: bytes) -> Mask:
        """Whether each token begins `text` or goes on beyond it; (vocabulary,). Cached: there are few texts."""
        found = self._beginnings.get(text)
        if found is None:
            found = np.zeros(self.size, dtype=bool)
            for token_id in self._by_first_byte.get(text[0], ()):
                data = self.data[token_id]
                found[token_id] = data.startswith(text) or text.startswith(data)
            self._beginnings[text] = found
        return found

    @cached_property
    def _beginnings(self) -> dict[bytes, Mask]:
        return {}

    @cached_property
    def _by_first_byte(self) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for token_id, data in enumerate(self.data):
            if data and token_id not in self.end_ids:
                groups.setdefault(data[0], []).append(token_id)
        return groups


class _Spelled:
    """What llguidance asks of a tokenizer that is not its own."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[bytes], eos: tuple[int, ...], encode: Any) -> None:
        self.tokens = tokens
        self.eos_token_id = eos[0]
        self.special_token_ids = [token_id for token_id, data in enumerate(tokens) if not data]
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return list(self._encode(text))
