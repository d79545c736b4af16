"""Encoding a text in which a control token's spelling may be just text.

A second tokenizer has the same model, normalizer and pre-tokenizer, but its added tokens go by secret names. Where a
text means a control token, the name is put in place of the spelling; a spelling that is left is text like any other.
So words and spaces meet control tokens as they always do: a text that holds no literal spelling has the same ids by
both ways. (The library's own switch is shared by all who use a tokenizer, and covers special tokens only.)

Added tokens of white space alone are no control tokens, and stay as they are.

Thread: any
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from itertools import pairwise

import tokenizers
from tokenizers import AddedToken

# A noncharacter of Unicode before 128 secret bits: no text holds a name unless it was told.
_NONCHARACTER = "\ufdd0"


class LiteralEncoder:
    """Over a tokenizer that it shares the model with. `spellings` and `control_ids` are its control tokens, special or
    not.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        added = sorted(tokenizer.get_added_tokens_decoder().items())
        secret = _NONCHARACTER + secrets.token_hex(16)
        control = {token.content: f"{secret}{number}." for number, token in added if token.content.strip()}
        self.spellings = tuple(control)
        self._control = control
        self._id_of = {control.get(token.content, token.content): number for number, token in added}
        self.control_ids = frozenset(number for number, token in added if token.content in control)
        longest_first = sorted(control, key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._normalizer = tokenizer.normalizer if any(token.normalized for _, token in added) else None
        self._twin = _renamed(tokenizer, [(control.get(token.content, token.content), token) for _, token in added])

    def ids_of(self, spellings: Iterable[str]) -> frozenset[int]:
        """The ids of those that are control tokens."""
        return frozenset(self._id_of[self._control[each]] for each in spellings if each in self._control)

    def settled(self, text: str) -> str:
        """`text`, or its normal form where that spells more control tokens (as `＜` may be a `<`)."""
        if self._normalizer is None or text.isascii():
            return text
        normal = str(self._normalizer.normalize_str(text))
        return text if self._spelled.findall(normal) == self._spelled.findall(text) else normal

    def places(self, text: str) -> list[tuple[int, str]]:
        """Where control tokens are spelled in `text`, and which."""
        return [(found.start(), found[0]) for found in self._spelled.finditer(text)]

    def encode(self, text: str, stands_for: dict[int, str]) -> list[int]:
        """Ids of `text`, whose spellings are control tokens; characters that stand for others are text.

        `stands_for` is what `str.translate` takes. Cost: as encoding, and twice more.
        """
        named = self._spelled.sub(lambda found: self._control[found[0]], text).translate(stands_for)
        named = named.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # as FastTokenizer.encode
        ids, leaked = self._ids(named)
        if not leaked:
            return ids
        # NOTE: a vocabulary's own model may know a spelling whole (Unigram's does): no piece may hold one then.
        cuts = [0, *(found.start() + 1 for found in self._spelled.finditer(named)), len(named)]
        return [number for start, end in pairwise(cuts) for number in self._ids(named[start:end])[0]]

    def _ids(self, named: str) -> tuple[list[int], bool]:
        """The ids, and whether a literal spelling became a control token all the same."""
        encoding = self._twin.encode(named, add_special_tokens=False)
        ids = [self._id_of.get(token, number) for number, token in zip(encoding.ids, encoding.tokens, strict=True)]
        places = zip(ids, encoding.tokens, encoding.offsets, strict=True)
        return ids, any(
            number in self.control_ids and token not in self._id_of and named[start:end].strip() in self._control
            for number, token, (start, end) in places
        )


def _renamed(tokenizer: tokenizers.Tokenizer, added: list[tuple[str, AddedToken]]) -> tokenizers.Tokenizer:
    """The same tokenizer with its added tokens under other names. Cost: milliseconds; the model is shared."""
    twin = tokenizers.Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        twin.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        twin.pre_tokenizer = tokenizer.pre_tokenizer
    for name, token in added:
        renamed = AddedToken(
            name, single_word=token.single_word, lstrip=token.lstrip, rstrip=token.rstrip, normalized=token.normalized
        )
        twin.add_special_tokens([renamed]) if token.special else twin.add_tokens([renamed])
    return twin
