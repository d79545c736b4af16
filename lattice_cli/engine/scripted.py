"""The scripted model: replies from a file (`--model script:FILE`), through the same rows and text stages.

A documented feature for client authors: it needs no weights and no MLX back end. The file's format is in
docs/guides/scripted-model.md.

Thread: any (parsing, tokenizer); worker (ScriptedBackend)
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from lattice_cli.engine.backend import Emitted, Progress
from lattice_cli.engine.reasoning import ReasoningBudget
from lattice_cli.engine.reply import Score
from lattice_cli.engine.row import Row
from lattice_cli.engine.telling import tell
from lattice_cli.errors import BadScript, EngineFault, UsageError
from lattice_cli.job import Job
from lattice_cli.model.card import ModelCard, ModelFormat, ModelSource
from lattice_cli.prompt.template import BARE_CHATML

Count = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


class HexToken(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A token given by its bytes, such as the half of an emoji."""

    hex: str


class Reply(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One reply; the first whose `when` is in the last user message wins (absent: always).

    With `tell` its first token is the JSON of what the engine was asked; see engine/telling.py.
    """

    tokens: tuple[str | HexToken, ...]
    when: str | None = None
    then: Literal["eos", "repeat", "hang"] = "eos"
    prefill_ms: Milliseconds = 0
    token_ms: Milliseconds = 0
    raise_at: Count | None = None
    tell: bool = False


class Script(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A whole file."""

    replies: tuple[Reply, ...]
    name: str | None = None
    context_tokens: Annotated[int, msgspec.Meta(ge=1)] = 4096
    prompt_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    chat_template: str = BARE_CHATML
    think: tuple[str, str] | None = None
    tool_parser: Literal["json", "qwen3_coder", "mistral", "llama3_json"] | None = None


def read_script(path: Path) -> Script:
    """Parse and check a script. Raises: BadScript naming the file and the place."""
    try:
        script = msgspec.json.decode(path.read_bytes(), type=Script)
    except OSError as error:
        raise BadScript(f"the script `{path}` cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadScript(f"the script `{path}` is malformed: {error}") from error
    for number, reply in enumerate(script.replies):
        for index, token in enumerate(reply.tokens):
            _token_bytes(token, f"`{path}` at `$.replies[{number}].tokens[{index}]`")
        if reply.then == "repeat" and not reply.tokens:
            raise BadScript(f"the script `{path}` at `$.replies[{number}]` repeats no tokens")
    if script.think is not None and not all(script.think):
        raise BadScript(f"the script `{path}` at `$.think` has an empty marker")
    return script


def _token_bytes(token: str | HexToken, place: str) -> bytes:
    if isinstance(token, str):
        return token.encode("utf-8", "surrogatepass")
    try:
        return bytes.fromhex(token.hex)
    except ValueError as error:
        raise BadScript(f"the script {place} holds no hex digits: `{token.hex}`") from error


class ScriptTokenizer:
    """Ids 0-255 are bytes; each element of each reply has an id of its own after them; the last ids are the
    closing marker of reasoning and the end. Elements made while a reply is played have ids beyond the end.
    """

    def __init__(self, script: Script) -> None:
        self._prompt_tokens = script.prompt_tokens
        self._elements = [_token_bytes(token, "") for reply in script.replies for token in reply.tokens]
        self._closing = script.think[1] if script.think else None
        if self._closing is not None:
            self._elements.append(self._closing.encode())
        self.end_id = 256 + len(self._elements)
        self._lent: dict[int, bytes] = {}

    @property
    def vocabulary_size(self) -> int:
        return self.end_id + 1

    def encode(self, text: str) -> list[int]:
        """One id a UTF-8 byte, or exactly the script's `prompt_tokens` ids; the closing marker alone is one id."""
        if text == self._closing:
            return [self.end_id - 1]
        if self._prompt_tokens is not None:
            return [0] * self._prompt_tokens
        return list(text.encode("utf-8", "surrogatepass"))

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        if token_id >= self.end_id:
            return self._lent.get(token_id, b"")
        return self._elements[token_id - 256]

    def lend(self, data: bytes) -> int:
        """An id for `data` until `take_back`; worker thread only, as `take_back`."""
        token_id = next(number for number in itertools.count(self.end_id + 1) if number not in self._lent)
        self._lent[token_id] = data
        return token_id

    def take_back(self, token_id: int) -> None:
        del self._lent[token_id]


@dataclass(slots=True)
class _Playing:
    """One row's place in its reply. `due_s` is when its next thing happens; None while it hangs."""

    row: Row
    reply: Reply
    ids: tuple[int, ...]
    position: int
    due_s: float | None
    budget: ReasoningBudget | None
    prefilled: bool = False


class ScriptedBackend:
    """Plays replies against a clock; rows run in parallel. `advance` never sleeps: see `ready_in_s`."""

    def __init__(self, script: Script, tokenizer: ScriptTokenizer, clock: Callable[[], float] = time.monotonic) -> None:
        self._script = script
        self._tokenizer = tokenizer
        self._clock = clock
        self._playing: dict[str, _Playing] = {}
        self._told: dict[str, int] = {}

    def insert(self, row: Row) -> None:
        reply, first_id = self._choose(row.job.prompt.asked)
        ids = tuple(range(first_id, first_id + len(reply.tokens)))
        if reply.tell:
            ids = (self._told_id(row.job), *ids)
        else:
            row.begin_guide()  # a told reply is no text of the model's, and no grammar holds it
        due_s = self._clock() + reply.prefill_ms / 1000
        self._playing[row.job.id] = _Playing(row, reply, ids, len(row.emitted), due_s, row.budget())

    def advance(self) -> list[Progress | Emitted]:
        now_s = self._clock()
        outcomes: list[Progress | Emitted] = []
        for playing in self._playing.values():
            if playing.due_s is None or playing.due_s > now_s:
                continue
            if playing.prefilled:
                outcomes.extend(self._token(playing))
            else:
                playing.prefilled = True
                playing.due_s += playing.reply.token_ms / 1000
                total = playing.row.prompt_tokens
                outcomes.append(Progress(playing.row.job.id, total, total))
        return outcomes

    def remove(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            self._playing.pop(job_id, None)
            if job_id in self._told:
                self._tokenizer.take_back(self._told.pop(job_id))

    def reset(self) -> None:
        self._playing.clear()

    def score(self, ids: tuple[int, ...], top: int) -> Iterator[list[Score]]:
        """A script is sure of what it reads, too."""
        yield [_sure(token_id, top) for token_id in ids[1:]]

    def ready_in_s(self) -> float | None:
        due = [playing.due_s for playing in self._playing.values() if playing.due_s is not None]
        return max(0.0, min(due) - self._clock()) if due else None

    def close(self) -> None:
        self._playing.clear()

    def _choose(self, asked: str) -> tuple[Reply, int]:
        """The first reply that matches, and the id of its first element; an empty reply when none does."""
        first_id = 256
        for reply in self._script.replies:
            if reply.when is None or reply.when in asked:
                return reply, first_id
            first_id += len(reply.tokens)
        return Reply(tokens=()), first_id

    def _told_id(self, job: Job) -> int:
        """The same id when a row starts over: it may be among those it has emitted."""
        if job.id not in self._told:
            self._told[job.id] = self._tokenizer.lend(tell(job))
        return self._told[job.id]

    def _token(self, playing: _Playing) -> list[Emitted]:
        reply, position = playing.reply, playing.position
        if position == reply.raise_at:
            playing.row.fault = EngineFault("generation failed")
            playing.due_s = None
            return []
        forced = playing.budget.forced(playing.row.emitted) if playing.budget else None
        if forced is None and position >= len(playing.ids) and reply.then != "repeat":
            if reply.then == "hang":
                playing.due_s = None
                return []
            assert playing.due_s is not None
            playing.due_s += reply.token_ms / 1000  # a job may ignore ends, and then hears one after another
            return [_said(playing.row, self._tokenizer.end_id)]
        playing.position += 1
        assert playing.due_s is not None
        playing.due_s += reply.token_ms / 1000
        return [_said(playing.row, playing.ids[position % len(playing.ids)] if forced is None else forced)]


def _said(row: Row, token_id: int) -> Emitted:
    """A token as a network's would come: known to the row's grammar, and with a score; a script is sure of itself."""
    if row.guide is not None:
        row.guide.advance(token_id)
    top = row.job.logprobs
    return Emitted(row.job.id, token_id, None if top is None else _sure(token_id, top))


def _sure(token_id: int, top: int) -> Score:
    return 0.0, ((token_id, 0.0),) if top else ()


def open_script(source: ModelSource, context_tokens: int | None) -> tuple[ModelCard, ScriptedBackend]:
    """A card and a backend for a scripted model. Raises: BadScript, UsageError (window too large)."""
    script = read_script(source.path)
    if context_tokens is not None and context_tokens > script.context_tokens:
        raise UsageError(
            f"`--context {context_tokens}` is more than the {script.context_tokens} tokens of `{source.served_id}`"
        )
    tokenizer = ScriptTokenizer(script)
    card = ModelCard(
        served_id=source.served_id,
        format=ModelFormat("script", "scripted", "none", script.context_tokens, source.path.stat().st_size),
        tokenizer=tokenizer,
        context_tokens=context_tokens or script.context_tokens,
        end_ids=frozenset({tokenizer.end_id}),
        chat_template=script.chat_template,
        tool_parser=script.tool_parser,
        think=script.think,
    )
    return card, ScriptedBackend(script, tokenizer)
