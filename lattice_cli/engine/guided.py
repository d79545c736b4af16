"""A row under a grammar: which tokens may come next, and whether those that came were allowed.

    OPENING -> THINKING -> HELD        where the constraint waits for a closing marker (`opens_after`)

Knows ids, bytes and bits; knows no tensors and no channels.

Thread: worker
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import numpy as np

from lattice_cli.engine.guide import CompiledGuide
from lattice_cli.engine.vocabulary import Mask
from lattice_cli.errors import is_panic

BREAK_TOKENS = 2
PANICKED = "its grammar failed"  # a panic of the library costs its row, not the thread of them all


class Phase(Enum):
    OPENING = "nothing certain yet: an opening marker may come, or the grammar's own text"
    THINKING = "the grammar counts once the closing marker was said"
    HELD = "every token is the grammar's"


class RowGuide:
    """Of one insertion of a row into a backend; `advance` is called once a token, in order, `allowed` at most once
    between two of them.

    `error` says why the row cannot go on: a token that the grammar does not have, or no token that it would take.
    It stays; the row must fail, for its text is not what was promised. `complete`: nothing but the end can follow.
    `opening` is the marker that a thought begins with, where one may come first; None where the thought is open
    already. Before `min_tokens` no end (of the model, or of the job's `end_ids`) may come while anything else may.
    `said` are the tokens of the reply so far, of a row that starts over after a fault.
    """

    def __init__(
        self,
        compiled: CompiledGuide,
        opening: str | None = None,
        *,
        min_tokens: int = 0,
        end_ids: Iterable[int] = (),
        said: Iterable[int] = (),
    ) -> None:
        self._vocabulary = compiled.vocabulary
        self._ends = self._vocabulary.ends | np.isin(np.arange(self._vocabulary.size), list(end_ids))
        self._matcher = compiled.start()
        self._closing = compiled.constraint.opens_after.encode()
        self._opening = opening.encode() if opening else b""
        self._min_tokens = min_tokens
        self._tokens = 0
        self._text = b""  # what may still be a part of a marker
        self._lost = False  # OPENING, and the text is no longer the grammar's
        self._breaks = 0  # tokens of line breaks that may still come: they belong to the closing marker
        self.error: str | None = None
        self._phase = Phase.HELD if not self._closing else Phase.OPENING if self._opening else Phase.THINKING
        for token_id in said:
            self.advance(token_id)

    @property
    def complete(self) -> bool:
        return self.error is None and self._phase is Phase.HELD and bool(self._matcher.is_stopped())

    def advance(self, token_id: int) -> None:
        """One token came, drawn, forced or scripted."""
        try:
            self._advance(token_id)
        except BaseException as error:
            if not is_panic(error):
                raise
            self.error = PANICKED

    def _advance(self, token_id: int) -> None:
        if self.error is not None:
            return
        self._tokens += 1
        if token_id in self._vocabulary.end_ids:
            self._end()
        elif self._phase is Phase.HELD:
            self._hold(token_id)
        else:
            self._text += self._data(token_id)
            if self._phase is Phase.OPENING:
                self._look_for_opening(token_id)
            if self._phase is Phase.THINKING:
                self._look_for_closing()

    def allowed(self) -> Mask | None:
        """Which ids may come next, (vocabulary,); None where all may. Owned by the caller. Cost: 10-300 us."""
        try:
            return self._allowed()
        except BaseException as error:
            if not is_panic(error):
                raise
            self.error = PANICKED
            return None

    def _allowed(self) -> Mask | None:
        if self.error is not None or self.complete:
            return None
        if self._phase is Phase.THINKING:  # a reply that ended in here would have no answer at all
            return ~self._vocabulary.ends
        mask = self._grammars_own() if not self._lost else np.zeros(self._vocabulary.size, dtype=bool)
        if self._phase is Phase.OPENING:
            mask |= self._vocabulary.beginning(self._opening[len(self._text.lstrip()) :])
        elif self._breaks:
            mask |= self._vocabulary.breaks
        elif self._tokens < self._min_tokens:
            later = mask & ~self._ends
            mask = later if later.any() else mask
        if self.error is None and not mask.any():
            self.error = "its grammar has no way on"
        return mask

    def _grammars_own(self) -> Mask:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            self.error = "its grammar has no way on"
        unpacked = np.unpackbits(bits, count=self._vocabulary.size, bitorder="little").view(np.bool_)
        mask: Mask = unpacked & self._vocabulary.usable
        return mask if self._matcher.is_accepting() else mask & ~self._vocabulary.ends

    def _data(self, token_id: int) -> bytes:
        return self._vocabulary.data[token_id] if token_id < self._vocabulary.size else b""

    def _hold(self, token_id: int) -> None:
        if self._breaks and self._matcher.validate_tokens([token_id]) != 1:
            self._after_marker(self._data(token_id))
        else:
            self._breaks = 0
            self._consume([token_id])

    def _after_marker(self, data: bytes) -> None:
        """Line breaks belong to the marker; what follows them in the same token is the grammar's."""
        rest = data.lstrip(b"\r\n")
        if data and not rest:
            self._breaks -= 1
            return
        self._breaks = 0
        if not self._matcher.consume_tokens(self._vocabulary.library.tokenize_bytes(rest)) or not data:
            self.error = "its text is not what its grammar allows"

    def _consume(self, ids: list[int]) -> None:
        if not self._matcher.consume_tokens(ids):
            self.error = "its text is not what its grammar allows"

    def _end(self) -> None:
        if self._phase is Phase.THINKING or self._lost or not self._matcher.is_accepting():
            self.error = "it ended before its grammar was fulfilled"

    def _look_for_opening(self, token_id: int) -> None:
        if not self._lost and self._matcher.validate_tokens([token_id]) == 1:
            self._matcher.consume_token(token_id)
        else:
            self._lost = True
        if self._text.lstrip().startswith(self._opening):
            self._matcher.reset()
            self._phase, self._lost = Phase.THINKING, False
        elif not self._opening.startswith(self._text.lstrip()):
            self._phase = Phase.HELD
            if self._lost:
                self.error = "its text is not what its grammar allows"

    def _look_for_closing(self) -> None:
        before, marker, rest = self._text.partition(self._closing)
        if not marker:
            self._text = before[-len(self._closing) :]
            return
        self._phase, self._breaks = Phase.HELD, BREAK_TOKENS
        if rest:
            self._after_marker(rest)
