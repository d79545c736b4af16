"""How an answer of /v1/completions is spelled: OpenAI's text_completion, whole and in chunks.

Knows spelling; knows no events' order, no framework and no engine. Every byte it writes is ASCII.

Thread: any
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lattice_cli.errors import LatticeError
from lattice_cli.events import CallPart, Finished, Piece, TokenScore
from lattice_cli.job import Channel
from lattice_cli.serve.failures import envelope
from lattice_cli.serve.wire import Ask, Echo, Frame
from lattice_cli.serve.wire.chat_voice import DONE, compact, last_frames
from lattice_cli.serve.wire.scores import Ledger
from lattice_cli.serve.wire.usage import timings_of, usage_of

if TYPE_CHECKING:
    from lattice_cli.engine.completion import Completion


class CompletionsVoice:
    """See `Voice`. Reply number `i` of prompt number `p` is the choice `p * n + i`.

    Log-probabilities count the end token, as vLLM's do: whoever scores prompts with `max_tokens` 1 takes off one.
    """

    def __init__(self, answer_id: str, created_s: int, model: str, ask: Ask, echoes: Sequence[Echo] = ()) -> None:
        self._head = {"id": answer_id, "object": "text_completion", "created": created_s, "model": model}
        self._before = compact(self._head)[:-1]
        self._after = b',"usage":null}' if ask.include_usage else b"}"
        self._ask = ask
        self._echoes = echoes
        self._ledgers = [Ledger(top=bool(ask.logprobs)) for _ in range(len(ask.prompts) * ask.choices)]

    def begin(self) -> list[Frame]:
        return []

    def open(self, choice: int) -> list[Frame]:
        if not self._echoes:
            return []
        echo = self._echoes[choice // self._ask.choices]
        return [self._told(choice, echo.text, self._logprobs(choice, echo.scores))]

    def chunk(self, choice: int, piece: Piece) -> list[Frame]:
        if not piece.text and (self._ask.logprobs is None or not piece.scores):
            return []
        return [self._told(choice, piece.text, self._logprobs(choice, piece.scores))]

    def call(self, choice: int, part: CallPart) -> list[Frame]:
        """A text has no calls, so none is ever asked for."""
        return []

    def close(self, choice: int, finished: Finished) -> list[Frame]:
        end = None if finished.end is None else self._logprobs(choice, [finished.end])
        frame = self._told(choice, "", end, compact(finished.reason))
        return [Frame(b'%b,"timings":%b}' % (frame.data[:-1], compact(timings_of([finished]))))]

    def end(self, finished: Sequence[Finished]) -> list[Frame]:
        return last_frames(self._before, usage_of(finished, self._ask.choices) if self._ask.include_usage else None)

    def fault(self, error: LatticeError) -> list[Frame]:
        return [Frame(compact(envelope(error))), DONE]

    def whole(self, completions: Sequence[Completion]) -> bytes:
        ends = [one.finished for one in completions if one.finished is not None]
        answer = {
            **self._head,
            "choices": [self._choice(index, one) for index, one in enumerate(completions)],
            "usage": usage_of(ends, self._ask.choices),
            "timings": timings_of(ends),
        }
        return compact(answer)

    def _told(self, choice: int, text: str, logprobs: dict[str, Any] | None, reason: bytes = b"null") -> Frame:
        return Frame(
            b'%b,"choices":[{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}]%b'
            % (self._before, choice, compact(text), compact(logprobs), reason, self._after)
        )

    def _logprobs(self, choice: int, scores: Sequence[TokenScore | bytes]) -> dict[str, Any] | None:
        return None if self._ask.logprobs is None else self._ledgers[choice].entries(scores)

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        echo = self._echoes[index // self._ask.choices] if self._echoes else Echo("")
        scores = [*echo.scores, *completion.scores(Channel.ANSWER)]
        if completion.finished is not None and completion.finished.end is not None:
            scores.append(completion.finished.end)
        return {
            "index": index,
            "text": echo.text + completion.answer,
            "logprobs": self._logprobs(index, scores),
            "finish_reason": completion.finished.reason if completion.finished else None,
        }
