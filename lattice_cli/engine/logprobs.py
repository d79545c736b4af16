"""Log-probabilities of drawn tokens, for the rows that asked: log-softmax of the raw logits, in float32.

They are made with the step that draws the token and read with the token, so they cost no wait of their own. Knows
tensors; knows no text.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx

from lattice_cli.engine.reply import Score
from lattice_cli.kernels.draws import likeliest

LOGITS_BYTES = 32 << 20  # of one chunk of a prompt; with what is made of them never more than 64 MB
PIECE_BYTES = 8 << 20  # logits that are looked at together


class Scores:
    """Of some rows of one step. `arrays` are to be evaluated with it."""

    def __init__(self, keys: Sequence[str], logits: mx.array, drawn: mx.array, tops: Sequence[int]) -> None:
        """`keys` name the rows of `logits` (rows, vocabulary), which drew `drawn` (rows,); `tops` are how many of
        the likeliest each wants.
        """
        self._keys = list(keys)
        self._tops = list(tops)
        self.arrays = list(measured(logits, drawn, max(tops)))

    def read(self) -> dict[str, Score]:
        """Each row's score. Waits for the step."""
        read: list[Any] = [array.tolist() for array in self.arrays]
        rows = zip(self._keys, self._tops, *read, strict=True)
        return {key: (float(own), best(ids, values, top)) for key, top, own, ids, values in rows}


def measured(logits: mx.array, drawn: mx.array, top: int) -> tuple[mx.array, mx.array, mx.array]:
    """Log-probabilities of `drawn` (rows,), and ids and log-probabilities of the `top` likeliest (rows, top),
    largest first; of `logits` (rows, vocabulary).
    """
    exact = logits.astype(mx.float32)
    whole = mx.logsumexp(exact, axis=-1, keepdims=True)  # (rows, 1)
    chosen = mx.take_along_axis(exact, drawn[:, None], axis=-1) - whole  # (rows, 1)
    top = min(top, exact.shape[-1])
    if top == 0:
        return chosen[:, 0], mx.zeros((exact.shape[0], 0), dtype=mx.uint32), exact[:, :0]
    values, ids = likeliest(exact, top)
    return chosen[:, 0], ids, values - whole


def best(ids: Sequence[int], values: Sequence[float], top: int) -> tuple[tuple[int, float], ...]:
    """The `top` likeliest of one row, best first, ties to the lowest id."""
    ranked = sorted(zip(ids, values, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return tuple((int(token_id), float(value)) for token_id, value in ranked[:top])


def prompt_scores(network: Any, caches: list[Any], ids: Sequence[int], top: int, chunk: int) -> Iterator[list[Score]]:
    """The scores of `ids[1:]`, read through a network with empty caches at most `chunk` tokens at a time."""
    done, count = 0, 1  # one token tells how wide the logits are
    while done < len(ids) - 1:
        fed, wanted = ids[done : min(done + count, len(ids) - 1)], ids[done + 1 : done + count + 1]
        logits = network(mx.array([list(fed)]), cache=caches)[0]  # (tokens, vocabulary)
        mx.eval(logits, [cache.state for cache in caches])
        done += len(fed)
        row_bytes = logits.shape[-1] * 4
        count = max(1, min(chunk, LOGITS_BYTES // row_bytes))
        yield _chunk_scores(logits, mx.array(list(wanted)), top, max(1, PIECE_BYTES // row_bytes))
        del logits
        mx.clear_cache()


def _chunk_scores(logits: mx.array, wanted: mx.array, top: int, piece: int) -> list[Score]:
    scores: list[Score] = []
    for start in range(0, logits.shape[0], piece):
        arrays = measured(logits[start : start + piece], wanted[start : start + piece], top)
        read: list[Any] = [array.tolist() for array in arrays]
        scores += [(float(own), best(few, values, top)) for own, few, values in zip(*read, strict=True)]
    return scores
