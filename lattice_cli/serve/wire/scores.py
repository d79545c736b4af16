"""Log-probabilities as OpenAI spells them: one object a token in chats, four lists side by side in completions.

A token that is no whole text is spelled by its bytes in hex, as OpenAI's servers do; `bytes` are exact always.

Thread: any
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from lattice_cli.events import TokenScore

LEAST = -9999.0  # JSON has no infinity; OpenAI sends this


def chat_logprobs(answer: Sequence[TokenScore], reasoning: Sequence[TokenScore] = ()) -> dict[str, Any]:
    """`logprobs` of a message or a chunk: one entry a token of the answer; thoughts have a list of their own."""
    told: dict[str, Any] = {"content": [_entry(score) for score in answer], "refusal": None}
    if reasoning:
        told["reasoning_content"] = [_entry(score) for score in reasoning]
    return told


def _entry(score: TokenScore) -> dict[str, Any]:
    top = [_one(data, logprob) for data, logprob in score.top]
    return {**_one(score.data, score.logprob), "top_logprobs": top}


def _one(data: bytes, logprob: float) -> dict[str, Any]:
    return {"token": data.decode("utf-8", "backslashreplace"), "logprob": _finite(logprob), "bytes": list(data)}


def _finite(logprob: float) -> float:
    return logprob if logprob >= LEAST else LEAST


class Ledger:
    """The four lists of a completion, piece by piece: it knows at which letter of the text the next token begins."""

    def __init__(self, top: bool) -> None:
        self._top = top
        self._letters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def entries(self, scores: Sequence[TokenScore | bytes]) -> dict[str, Any]:
        """The lists of these tokens; a token without a score (the first of a prompt) is given by its bytes."""
        told: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for score in scores:
            data = score if isinstance(score, bytes) else score.data
            told["tokens"].append(_spelled(data))
            told["token_logprobs"].append(None if isinstance(score, bytes) else _finite(score.logprob))
            told["top_logprobs"].append(None if isinstance(score, bytes) else _best(score))
            told["text_offset"].append(self._letters)
            self._letters += len(self._decoder.decode(data))
        if not self._top:
            told["top_logprobs"] = None
        return told


def _best(score: TokenScore) -> dict[str, float]:
    """Text -> log-probability, the token's own included; of two tokens with one text the likelier is told."""
    best: dict[str, float] = {}
    for data, logprob in (*score.top, (score.data, score.logprob)):
        best.setdefault(_spelled(data), _finite(logprob))
    return best


def _spelled(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
